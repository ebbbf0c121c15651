"""Recorded drivers on Spark are behaviours of `BarrierCommit`: here simulated drivers that die at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

import checkpoint_lab as sim
from checkpoint_lab.schedules import drive
from checkpoint_lab.spark_driver import CoreOf, Deciding
from checkpoint_lab.spark_sink import SparkSink
from checkpoint_lab.spark_store import Shared
from checkpoint_lab.world import Choice
from spark_ckpt.coordination.messages import IntervalElapsed, RetryElapsed
from tests.simulator import host_bugs
from tests.specs.recorded_steps import MODULE, NotMapped, recorded_steps
from tests.specs.tla import Step, traces_module
from tests.specs.tlc import check
from tests.trace.recording import Recording

SEEDS = range(10)
MANY = range(30)


class CommitsEveryEpoch(sim.SparkWorld):
    """A world in which no epoch is aborted, or begins by its interval before the last is published."""

    def choices(self) -> list[Choice]:
        return [choice for choice in super().choices() if choice[0] != "savepoint"]

    def timers(self) -> list[Choice]:
        return [choice for choice in super().timers() if self._may_run_out(int(choice[1] or 0), int(choice[2] or 0))]

    def _may_run_out(self, driver: int, number: int) -> bool:
        _, elapsed = self.drivers[driver].timers[number]
        published = not any(self.drivers[driver].core.publication.unpublished.values())
        return isinstance(elapsed, RetryElapsed) or (isinstance(elapsed, IntervalElapsed) and published)

    def faults(self) -> list[Choice]:
        return [choice for choice in super().faults() if choice[0] != "miss"]


def schedules(core_of: CoreOf | None = None, seeds: range = SEEDS) -> list[list[Step]]:
    """Return both sinks' steps of every schedule that the specification covers; with wrong rules, up to the first alarm."""
    found = []
    for seed in seeds:
        recording = Recording(core_of)
        drive(CommitsEveryEpoch(recording.core_of, draining=seed % 2 == 1, deaths=seed % 3 > 0), seed, 250, 0.08)
        traces = recording.traces()
        for sink in ("out", "tap"):
            try:
                found.append(recorded_steps(traces, sink))
            except NotMapped:
                continue
    return found


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(MANY, marks=pytest.mark.long)])
def test_schedules_of_the_rules_are_behaviours_of_the_specification(tmp_path: Path, seeds: range) -> None:
    traces = schedules(seeds=seeds)
    result = check(tmp_path, MODULE, more=traces_module("RecordedBarriers", traces), flags=())

    actions = [step.action for trace in traces for step in trace]
    assert len(traces) > len(seeds)
    assert min(actions.count(action) for action in ("decide", "publish", "crash")) > 2 * len(seeds) / 3, actions
    assert result.ok, result.output


@pytest.mark.parametrize(
    "plant",
    [
        host_bugs.cursors_are_those_before_the_barriers_batch,
        # schedules find these in the gate: tests/simulator/test_spark_world.py
        pytest.param(host_bugs.rows_of_an_ended_epoch_stay_open, marks=pytest.mark.long),
        pytest.param(host_bugs.files_of_later_batches_come_first, marks=pytest.mark.long),
    ],
    ids=lambda plant: plant.__name__,
)
def test_schedules_of_wrong_rules_are_rejected(tmp_path: Path, plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    # The specification must refuse the schedule, not the world.
    monkeypatch.setattr(Shared, "judge", lambda shared, manifest: None)
    monkeypatch.setattr(SparkSink, "judge", lambda sink, rows: None)
    monkeypatch.setattr(SparkSink, "judge_published", lambda sink, shared, output: None)
    monkeypatch.setattr(Deciding, "judge", lambda deciding, effect: None)
    traces = schedules(host_bugs.core_with(plant))
    result = check(tmp_path, MODULE, more=traces_module("RecordedBarriers", traces), flags=())

    assert result.violated == "deadlock", result.output
