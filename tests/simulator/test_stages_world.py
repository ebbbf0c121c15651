"""Programs joined by edges, with the index protocol: every line is a cut, every segment is read once, bugs are caught."""

from __future__ import annotations

from collections import Counter

import pytest

import checkpoint_lab as sim
from checkpoint_lab.schedules import STAGES_FAULT_RATE, STAGES_STEPS, drive, replay
from checkpoint_lab.stages_world import BUDGET, StagesWorld
from tests.simulator.measured import known_first
from tests.simulator.stage_bugs import CATCHERS, PLANTED, SEEDS, Planted

UNTIL_CAUGHT = 1200


@pytest.mark.parametrize("schedules", [120, pytest.param(6_000, marks=pytest.mark.long)])
def test_every_line_is_one_cut_in_every_schedule(schedules: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(schedules):
        found = sim.run_stages(seed)
        assert found.error is None, f"seed {seed}: {found.error}"
        happened.update(found.counts)
    assert min(happened[kind] for kind in (*BUDGET, "forced", "said", "input", "epoch")) > schedules // 10, happened
    assert happened["late"] > 0
    assert happened["lines"] > 20 * schedules


def test_a_schedule_of_programs_replays_from_its_trace() -> None:
    found = sim.run_stages(3)
    again = replay(lambda: StagesWorld(3), found)
    assert again.counts == found.counts


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_bug_is_caught_by_its_own_verdict(planted: Planted) -> None:
    for seed in known_first(SEEDS.get(planted.name), (*CATCHERS, *range(UNTIL_CAUGHT))):
        found = drive(StagesWorld(seed, planted.rules), seed, STAGES_STEPS, STAGES_FAULT_RATE)
        if isinstance(found.error, planted.verdict):
            return
        assert found.ok or found.condemned
    pytest.fail(f"{planted.name} is not caught")


def test_the_schedules_that_catch_bugs_are_sound_without_them() -> None:
    assert [seed for seed in CATCHERS if not sim.run_stages(seed).ok] == []
