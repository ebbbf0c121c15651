"""A query with `format("outbox")` under all faults: no row is lost, or published twice without a report."""

from __future__ import annotations

import pytest
from measured import known_first
from outbox_format_bugs import CATCHERS, PLANTED, SEEDS

import checkpoint_lab as sim
from checkpoint_lab.schedules import OUTBOX_FAULT_RATE, OUTBOX_STEPS, drive, outbox_format_world
from tests.simulator.eager import TIMES, Eager

KINDS = (
    "rewind", "delete", "edit", "copy", "stranger", "back up", "lose", "usurp", "crash", "name", "empty", "arrive", "ahead fail",
    "move", "commit fail", "commit silent", "commit again", "TellBranch", "decided", "obey", "swept", "CKPT_FENCED",
    "CKPT_QUERY_FOREIGN", "CKPT_BATCH_UNEXPECTED",
)  # fmt: skip


@pytest.mark.parametrize("schedules", [150, pytest.param(8_000, marks=pytest.mark.long)])
def test_no_row_is_lost_or_published_twice_with_rows_staged_first(schedules):
    happened = dict.fromkeys(KINDS, 0)
    for seed in range(schedules):
        outcome = sim.run_outbox_format(seed)
        assert outcome.ok, f"seed {seed}: {outcome.error}"
        for what in happened:
            happened[what] += outcome.counts.get(what, 0)
    assert min(happened.values()) > schedules // 400, happened
    assert happened["decided"] > 4 * schedules


@pytest.mark.parametrize("lives", [9, pytest.param(60, marks=pytest.mark.long)])
def test_no_long_or_eager_schedule_of_a_query_with_the_format_is_condemned(lives):
    for seed in range(lives):
        times = TIMES if seed % 3 == 0 else 1
        outcome = drive(outbox_format_world(seed, times=times), seed, OUTBOX_STEPS, OUTBOX_FAULT_RATE, Eager)
        assert outcome.ok, f"seed {seed}: {outcome.error}"


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_of_the_format_is_caught(plant, monkeypatch):
    plant(monkeypatch)
    seeds = known_first(SEEDS.get(plant.__name__), CATCHERS)
    found = next((each for each in map(sim.run_outbox_format, seeds) if each.condemned), None)
    assert found is not None, "no schedule is condemned"
    again = sim.replay(lambda: outbox_format_world(found.seed), found)
    assert (type(again.error), str(again.error)) == (type(found.error), str(found.error))


def test_the_schedules_that_catch_bugs_are_sound_without_them():
    assert [seed for seed in CATCHERS if not sim.run_outbox_format(seed).ok] == []
