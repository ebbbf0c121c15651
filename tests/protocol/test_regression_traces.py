"""Two errors of the published algorithms as short traces: the literal variant fails, ours does not."""

from __future__ import annotations

import pytest

from spark_ckpt.simulator.barrier_storage import JOIN, PIPELINE
from spark_ckpt.simulator.barrier_world import BarrierWorld, Roles
from spark_ckpt.simulator.violations import Violation
from spark_ckpt.simulator.world import Choice
from tests.protocol.test_planted_bugs import LiteralNil, SinksAreEnough


def first_epoch(world: BarrierWorld, withheld: str = "") -> BarrierWorld:
    """One barrier and all that follows from it, in the order of the list, without the stores that are withheld."""
    while choices := _choices(world, withheld):
        world.do(choices[0])
    return world


def _choices(world: BarrierWorld, withheld: str) -> list[Choice]:
    ordinary = [choice for choice in world.choices() if choice[0] != "stored" or world.stores[choice[1]][0] != withheld]
    begun = any(coordinator.injected for coordinator in world.coordinators)
    return ordinary or ([] if begun else world.timers()[:1])


def test_t3_sinks_do_not_speak_for_snapshots_that_are_still_being_written() -> None:
    """Erratum E2: the decision waits for the slow store; a crash before it then loses nothing."""
    waiting = first_epoch(BarrierWorld(JOIN), withheld="snapshot")

    assert waiting.durable.prepared
    assert waiting.durable.decided == []
    assert [record.epoch for record in first_epoch(waiting).durable.decided] == [1]


def test_t3_the_literal_rule_decides_an_epoch_that_a_crash_would_destroy() -> None:
    with pytest.raises(Violation, match="O7: epoch 1 without all snapshots"):
        first_epoch(BarrierWorld(JOIN, {"coordinator": SinksAreEnough}), withheld="snapshot")


@pytest.mark.parametrize(("roles", "snapshots"), [({}, 3), ({"operator": LiteralNil}, 0)], ids=["ours", "literal"])
def test_t4_a_source_snapshots_on_nil_and_the_literal_rule_never_does(roles: Roles, snapshots: int) -> None:
    """Erratum E4."""
    assert len(first_epoch(BarrierWorld(PIPELINE, roles)).durable.snapshots) == snapshots
