"""Sinks with early sends: every fault happens, and bugs that would publish a wrong row are caught."""

from __future__ import annotations

import pytest
from ahead_bugs import PLANTED_AHEAD, rows_are_committed_before_the_decision
from measured import seeds_for
from spark_lives import run, world

import checkpoint_lab as sim
from checkpoint_lab.schedules import AHEAD
from checkpoint_lab.spark_sink import SparkSink

ENOUGH = 400
SEEDS = [seed for seed in range(ENOUGH) if seed % 11 in AHEAD]
"""Seeds of jobs with early sends."""


def first_failure(name):
    return next((outcome for outcome in map(run, seeds_for("rows sent early", name, SEEDS)) if outcome.condemned), None)


@pytest.mark.parametrize("schedules", [80, pytest.param(ENOUGH, marks=pytest.mark.long)])
def test_no_schedule_is_condemned_and_every_kind_of_fault_happens(schedules, monkeypatch):
    committed, show = [], SparkSink.show

    def shown(sink, commit):
        committed.append(len(sink.early_rows))
        show(sink, commit)

    monkeypatch.setattr(SparkSink, "show", shown)
    happened = dict.fromkeys(
        ["sent early", "dropped ahead", "send fail", "send silent", "lose lost", "delay late", "late commit"], 0
    )
    for seed in SEEDS[: schedules // 2]:
        outcome = sim.run_spark(seed)
        assert outcome.ok, f"seed {seed}: {outcome.error}"
        for what in happened:
            happened[what] += outcome.counts.get(what, 0)
    assert min(happened.values()) > schedules // 60, happened
    assert sum(map(bool, committed)) > schedules // 2, "what was sent early is hardly ever committed"


@pytest.mark.parametrize("plant", PLANTED_AHEAD, ids=lambda plant: plant.__name__)
def test_a_planted_bug_in_early_sends_is_caught(plant, monkeypatch):
    plant(monkeypatch.setattr)
    found = first_failure(plant.__name__)
    assert found is not None, f"{plant.__name__}: no schedule of {len(SEEDS)} is condemned"
    print(f"{plant.__name__}: seed {found.seed}, {len(found.trace)} steps: {str(found.error).splitlines()[0]}")
    again = sim.replay(lambda: world(found.seed), found)
    assert (type(again.error), str(again.error)) == (type(found.error), str(found.error))


def test_an_early_commit_is_caught_by_repeated_rows_too(monkeypatch):
    """Without the oracle that compares published with committed rows: rows are repeated after a driver has died."""
    rows_are_committed_before_the_decision(monkeypatch.setattr)
    monkeypatch.setattr(SparkSink, "judge_shown", lambda sink, shared: None)
    found = first_failure(rows_are_committed_before_the_decision.__name__)
    assert found is not None
    assert str(found.error).startswith(("O14", "O15", "O3")), found.error
