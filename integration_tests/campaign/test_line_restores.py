"""The campaign's kills of a restore, and its verdict, on stores made without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration_tests.campaign import line_kills
from integration_tests.campaign.line_kills import State, expected_state
from integration_tests.campaign.line_restores import DEATHS, Broken, carried_out, compare, restoring
from integration_tests.campaign.trial import Results, read
from spark_ckpt.epochs.lines import to_target
from spark_ckpt.program_edges.line_stores import read_stores
from spark_ckpt.store.existing import existing_store
from tests.edges.line_kit import ProgramKit


def two_programs(root: Path) -> list[str]:
    orders = ProgramKit(root, "orders")
    totals = ProgramKit(root, "totals", orders)
    for index in (1, 2, 3):
        orders.commit(index=index)
        totals.read(orders)
        totals.commit(index=index)
    return [str(root / "orders"), str(root / "totals")]


@pytest.mark.parametrize(("death", "half"), list(zip(DEATHS, (0, 1, 2, 1), strict=True)))
def test_a_killed_restore_leaves_stores_that_refuse_and_the_next_one_completes_it(
    tmp_path: Path, death: str, half: int
) -> None:
    places = two_programs(tmp_path)
    line = to_target(read_stores([existing_store(place) for place in places]).programs, "line-2")
    assert carried_out(places, "line-2", death) == -9
    assert [restoring(place) for place in places].count(True) == half

    assert carried_out(places, "line-2", "") == 0
    compare(tmp_path, line)
    assert not any(map(restoring, places))


def test_a_restore_that_leaves_a_store_where_it_was_is_found(tmp_path: Path) -> None:
    places = two_programs(tmp_path)
    line = to_target(read_stores([existing_store(place) for place in places]).programs, "line-2")
    assert carried_out(places[1:], "totals@2", "") == 0
    with pytest.raises(Broken, match="orders is at epoch 3, the line has 2"):
        compare(tmp_path, line)


@pytest.mark.parametrize(
    ("found", "wrong"),
    [({"k0": (4, 42, 0)}, 1), (expected_state(1), 0), ({**expected_state(1), "k0": (3, 21, 1)}, 1)],
    ids=["a key is lost", "whole", "a row is lost"],
)
def test_a_state_that_differs_from_a_run_without_failure_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: State, wrong: int
) -> None:
    monkeypatch.setattr(line_kills, "state_of_reader", lambda root: found)
    line_kills.compare_state(tmp_path, 1, "rows compared", Results(tmp_path / "results.jsonl", "lines", 1))
    [trial] = read(tmp_path / "results.jsonl")
    assert (trial.figures["wrong"], bool(trial.why)) == (wrong, bool(wrong))
