"""Simulated stages of one program, recorded as drivers record theirs: their incarnations as traces, and as a run for TLC."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from checkpoint_lab.schedules import STAGES_FAULT_RATE, STAGES_STEPS, ScheduleOutcome, drive
from checkpoint_lab.stages_world import EDGE, Held, ProgramNode, StageRules, StagesWorld
from checkpoint_lab.violations import Lost, NoEnd
from checkpoint_lab.world import Choice
from spark_ckpt.connector import EpochOutput
from spark_ckpt.coordination.job_shape import JobShape, Limits
from spark_ckpt.coordination.markers import BARRIER, ControlMarker
from spark_ckpt.coordination.messages import (
    BatchDone,
    CommitEpoch,
    EpochRequested,
    EpochsReleased,
    OfferMarker,
    Publish,
    Reason,
)
from spark_ckpt.coordination.reports import Report
from spark_ckpt.coordination.stage_process import StageProcess
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import Manifest, StagedFileRecord, StagedOutput
from spark_ckpt.epochs.restore import LATEST, RecoveryPoint
from spark_ckpt.trace.lines import Begun, StageBegun, handled
from spark_ckpt.trace.reading import Recorded
from tests.specs.recorded_lines import Run, recorded_run
from tests.trace.recording import whole

ONE_ROW = StagedFileRecord(path="rows.parquet", size_bytes=1, rows=1, lane=0, batch=0, task=0, part=0)
"""A segment of the simulator is one row."""


class RecordingRules(StageProcess):
    """Rules of one incarnation that keep the lines of its trace."""

    def __init__(self, *start: Any) -> None:
        super().__init__(*start)
        self.start = StageBegun.of(self)
        self.lines: list[str] = []

    def handle(self, event: Any, now_ms: float) -> list[Any]:
        effects = super().handle(event, now_ms)
        self.lines.append(handled(event, now_ms, effects).text())
        return effects


@dataclass
class RecordedStage:
    """One recorded incarnation of a stage, with its batches and published epochs."""

    node: ProgramNode
    stage: RecordingRules
    begun: Begun
    batches: int = 0
    published: int = 0

    @classmethod
    def of(cls, node: ProgramNode) -> RecordedStage:
        """Begin an incarnation as its driver does."""
        assert isinstance(node.stage, RecordingRules)
        shape = JobShape(node.name, node.senders, {}, (), Limits(), store="store")
        parts = {each: {"kind": "edge", "job": each, "edge": EDGE} for each in node.senders}
        base = manifest_of(node, node.log.latest, node.epochs[node.log.latest], rows=False)
        point = RecoveryPoint(node.log.incarnation, base, node.log.last, LATEST)
        begun = Begun.of(shape, point, Standing(parts), {}).model_copy(update={"stage": node.stage.start})
        return cls(node, node.stage, begun)

    def record(self, event: Any, *effects: Any) -> None:
        """Record an event of a driver's rules, and their effects."""
        self.stage.lines.append(handled(event, 0, effects).text())

    def batch(self, rows: int, barrier: bool) -> None:
        """Record a batch that read this number of segments, and the barrier in it."""
        self.batches += 1
        if barrier:
            marker = ControlMarker(self.batches, BARRIER, self.node.log.last + 1)
            self.record(EpochRequested(Reason.INTERVAL), OfferMarker(marker))
        self.record(self._done(rows, self.batches if barrier else 0))

    def request_commit(self, held: Held) -> None:
        """Record the request for an epoch with this content."""
        self.record(
            self._done(0, 0), CommitEpoch(manifest_of(self.node, self.node.log.last + 1, held, bool(held.hops)))
        )

    def release(self) -> None:
        """Record the newest epoch that sinks may publish, if it has changed."""
        epoch = self.stage.publishes_up_to
        if epoch > self.published:
            self.published = epoch
            output = EpochOutput(epoch, self.node.log.incarnation, 0, "", {}, ())
            self.record(EpochsReleased(epoch), Publish(EDGE, output))

    def _done(self, rows: int, marker: int) -> BatchDone:
        cursors = {sender: at.model_dump() for sender, at in self.node.now.positions.items()}
        report = Report("input", 0, 0, "sources", {"rows_in": rows})
        return BatchDone(self.batches, cursors, 0, marker, (report,))

    def recorded(self) -> Recorded:
        """Return the trace."""
        return whole(self.begun.point.incarnation, [self.begun.text(), *self.stage.lines])


def manifest_of(node: ProgramNode, epoch: int, held: Held, rows: bool) -> Manifest:
    """Return the manifest of an epoch of a simulated stage, as a job on Spark writes it."""
    files = (ONE_ROW,) if rows else ()
    return Manifest(
        job=node.name,
        epoch=epoch,
        incarnation=node.log.incarnation,
        attempt="",
        base=node.log.latest,
        previous=node.log.last,
        created_ms=0,
        cursors={sender: at.model_dump() for sender, at in held.positions.items()},
        outputs={EDGE: StagedOutput(sink=EDGE, files=files, rows=len(files))},
    )


@dataclass
class _Seen:
    stage: StageProcess | None
    segments: int
    sealed: bool


class RecordedWorld(StagesWorld):
    """Stages that die at every step, and are recorded. No operator restores one, and all have an index from the start."""

    def __init__(self, seed: int, rules: StageRules) -> None:
        self.incarnations: dict[str, list[RecordedStage]] = {}
        kept = type("KeptRules", (RecordingRules, rules.stage), {})
        self._cut_of = rules.cut
        super().__init__(seed, replace(rules, stage=kept, cut=self._cut))
        for name, node in self.nodes.items():
            self.incarnations[name] = [RecordedStage.of(node)]

    def faults(self) -> list[Choice]:
        return [choice for choice in super().faults() if choice[0] in ("crash", "late", "jump")]

    def do(self, choice: Choice) -> None:
        seen = {name: _seen(node) for name, node in self.nodes.items()}
        try:
            super().do(choice)
        finally:
            # A step that an oracle refuses has happened, and is recorded, too.
            for name, node in self.nodes.items():
                self._observe(node, self.incarnations[name], seen[name])

    def _observe(self, node: ProgramNode, incarnations: list[RecordedStage], seen: _Seen) -> None:
        if node.stage is not None and node.stage is not incarnations[-1].stage:
            incarnations.append(RecordedStage.of(node))
            return
        segments, barrier = len(node.now.read) - seen.segments, node.sealed and not seen.sealed
        if segments or barrier:
            incarnations[-1].batch(segments, barrier)
        if node.stage is not None:
            incarnations[-1].release()

    def _cut(self, node: ProgramNode) -> Held:
        held = self._cut_of(node)
        self.incarnations[node.name][-1].request_commit(held)
        return held

    def traces(self) -> list[Recorded]:
        """Return what every stage has recorded."""
        return [each.recorded() for _, incarnations in sorted(self.incarnations.items()) for each in incarnations]


def _seen(node: ProgramNode) -> _Seen:
    return _Seen(node.stage, len(node.now.read), node.sealed)


def schedule(seed: int, rules: StageRules) -> tuple[Run, ScheduleOutcome]:
    """Run simulated stages until they are at rest, or until an oracle raises an alarm; return the recorded run and the end."""
    world = RecordedWorld(seed, rules)
    outcome = drive(world, seed, STAGES_STEPS, STAGES_FAULT_RATE)
    at_rest = not outcome.condemned or isinstance(outcome.error, (NoEnd, Lost))
    return recorded_run(world.traces(), at_rest), outcome
