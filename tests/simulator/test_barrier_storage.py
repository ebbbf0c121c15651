"""What the barrier world's storage accepts as a decided cut of a sink with two inputs."""

from __future__ import annotations

import pytest

from checkpoint_lab.barrier_storage import BarrierGraph, Durable, Record, State
from checkpoint_lab.violations import Lost

MERGE = BarrierGraph("merge", {"s": 2, "t": 1}, (("s", "k"), ("t", "k")), ("k",))
ROWS: dict[str, tuple[Record, ...]] = {"s": (("s", "s", 0), ("s", "s", 1)), "t": (("t", "t", 0),)}
FIRST, SECOND, OTHER = *ROWS["s"], *ROWS["t"]


def ready(staged: tuple[Record, ...]) -> Durable:
    """Everything is there for epoch 1: the sink took all rows and staged these."""
    storage = Durable(MERGE, incarnation=1)
    for source, rows in ROWS.items():
        storage.snapshots[source, 1, 1] = State(sent={"k": rows})
    storage.snapshots["k", 1, 1] = State(received=ROWS)
    storage.prepared["k", 1, 1] = staged
    return storage


def test_rows_of_two_inputs_are_staged_in_any_interleaving() -> None:
    storage = ready((FIRST, OTHER, SECOND))

    storage.decide(1, 1, {})

    assert storage.base == 1


@pytest.mark.parametrize("staged", [(FIRST, SECOND), (SECOND, OTHER, FIRST), (FIRST, OTHER, SECOND, OTHER)])
def test_rows_that_are_missing_or_out_of_order_or_twice_are_found(staged: tuple[Record, ...]) -> None:
    with pytest.raises(Lost):
        ready(staged).decide(1, 1, {})
