"""One real incarnation with a fake source and sink; a test plays Spark, batch by batch."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import LongType, StructType

from spark_ckpt.config import JobConfig
from spark_ckpt.connector import EpochOutput, PublishReceipt, StagePlan
from spark_ckpt.coordination.markers import BARRIER, ControlMarker
from spark_ckpt.coordination.messages import Outcome
from spark_ckpt.coordination.reports import Report
from spark_ckpt.driver import incarnation as incarnation_module
from spark_ckpt.driver.incarnation import Ending, SparkIncarnation
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.progress import Progress
from spark_ckpt.driver.query import stage as stage_module
from spark_ckpt.driver.query.batch_phases import Phases
from spark_ckpt.driver.query.offset_log import BatchOffsets
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import Holder
from spark_ckpt.events.announcer import Announcer
from spark_ckpt.events.listener import RunListener
from spark_ckpt.plan.graph import SinkBinding, SourceNode
from spark_ckpt.store.store import Store
from spark_ckpt.tasks.staging import SinkStage, StageWriter

WAIT_S = 60
JOB = "job"
HERE = Holder(host="here", boot_id="b", pid=1, pid_start=1, name=JOB)
ELSEWHERE = Holder(host="elsewhere", boot_id="b", pid=2, pid_start=2, name=JOB)
SCHEMA = StructType().add("v", LongType())


def eventually(holds, what="it"):
    """Wait until `holds()` is true; the other side works on its own threads."""
    deadline_s = time.monotonic() + WAIT_S
    while not (found := holds()):
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.01)
    return found


class FakeSource:
    """Numbered rows: a cursor is {"n": rows so far}. `rows`: number of rows at the time of the call."""

    rows = 0

    def check(self, spark):
        pass

    def start(self, spark):
        return {"n": 0}

    def cursor(self, offset, previous):
        return {"n": int(json.loads(offset)["n"])}

    def end(self, spark):
        return {"n": self.rows}

    def reached(self, cursor, end):
        return cursor["n"] >= end["n"]

    def describe(self):
        return {"kind": "fake"}


class FakeSink:
    """Record published epochs; `script` holds errors to raise, one per attempt, None for none."""

    def __init__(self):
        self.published: list[tuple[int, list[int]]] = []
        self.outputs: list[EpochOutput] = []
        self.opened_by: list[int] = []
        self.fences = 0
        self.script: list[BaseException | None] = []
        self.released = threading.Event()
        self.released.set()

    def check(self, spark, schema):
        pass

    def stage(self, schema):
        return StagePlan()

    def describe(self):
        return {"kind": "fake"}

    def publisher(self, spark, context):
        self.opened_by.append(context.incarnation)
        return self

    def fence(self):
        self.fences += 1

    def publish(self, output):
        assert self.released.wait(WAIT_S)
        self.outputs.append(output)
        error = self.script.pop(0) if self.script else None
        if error is not None:
            raise error
        done = [epoch for epoch, _ in self.published]
        rows = [row for file in output.files for row in values_in(output.root, file.path)]
        if output.epoch not in done:
            self.published.append((output.epoch, rows))
        return PublishReceipt(output.epoch, len(rows), replayed=output.epoch in done)

    def close(self):
        pass

    @property
    def rows(self):
        return [row for _, rows in self.published for row in rows]


def values_in(root, path):
    return pq.read_table(f"{root}/{path}").column("v").to_pylist()


class FakeQuery:
    """Replaces Spark's query: it runs until it is stopped or killed."""

    def __init__(self, spark, description, on_batch, is_over):
        self.description, self.on_batch, self.is_over = description, on_batch, is_over
        self.isActive, self.error, self.name = True, None, "fake"
        self.spark_phases: dict[int, Phases] = {}

    def start(self):
        return self

    def stop(self):
        self.isActive = False

    def die(self, error):
        self.error, self.isActive = error, False

    def exception(self):
        return self.error

    def phases(self, batch):
        return self.spark_phases.get(batch)


class RecordingListener(RunListener):
    """Record events of listeners, as (name, epoch)."""

    def __init__(self):
        self.events = []

    def onIncarnationStarted(self, event):
        self.events.append(("started", event.base))

    def onEpochCommitted(self, event):
        self.events.append(("committed", event.epoch))

    def onEpochAborted(self, event):
        self.events.append(("aborted", event.epoch))

    def onEpochPublished(self, event):
        self.events.append(("published", event.epoch))

    def onOutage(self, event):
        self.events.append(("outage", event.condition))

    def onHandover(self, event):
        self.events.append(("handover", event.incarnation))

    def onIncarnationEnded(self, event):
        self.events.append(("ended", event.incarnation))


class Bench:
    """One store and one sink, for several incarnations in a row."""

    def __init__(self, folder: Path, monkeypatch, operator=None, **settings):
        self.parts: dict[str, Any] = {}
        self.plays_spark(monkeypatch)
        self.folder, self.sink, self.listener = folder, FakeSink(), RecordingListener()
        self.store = Store.open(str(folder / "store"), JOB)
        self.plan = self.planned(operator, **settings)
        self.queries: list[FakeQuery] = []

    def plays_spark(self, monkeypatch) -> None:
        """Replace Spark, and keep the parts of the newest incarnation by the name of their constructor."""
        monkeypatch.setattr(stage_module, "StageQuery", self._query)
        monkeypatch.setattr(incarnation_module, "POLL_S", 0.01)
        for name in ("CoordinatorLoop", "Lanes", "recorded"):
            monkeypatch.setattr(incarnation_module, name, self._keeping(name, getattr(incarnation_module, name)))

    def _keeping(self, name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments):
            self.parts[name] = make(*arguments)
            return self.parts[name]

        return made

    def planned(self, operator=None, sinks: Sequence[str] = ("out",), **settings) -> JobPlan:
        defaults = {"interval": "1 hour", "local_dir": self.folder / "local", "key_groups": 2}
        config = JobConfig.of(defaults | settings, {})
        source = SourceNode("in", FakeSource(), SCHEMA)
        bindings = [SinkBinding(name, self.sink, source, SCHEMA) for name in sinks]
        plans = {name: StagePlan() for name in sinks}
        return JobPlan(None, JOB, config, self.store, bindings, [source], [operator] if operator else [], 1, plans)

    def _query(self, *arguments):
        self.queries.append(FakeQuery(*arguments))
        return self.queries[-1]

    def begin(
        self,
        targets: Mapping[str, object] | None = None,
        takeover=False,
        standing: Standing | None = None,
        restore: str | int = "latest",
    ) -> Spark:
        point = self.store.log.begin_incarnation(HERE, restore, self.plan.config.lease_ms, takeover)
        announcer = Announcer(JOB, point.incarnation, [self.listener])
        progress = Progress(JOB)
        driver = SparkIncarnation(self.plan, point, announcer, progress, targets or {}, standing)
        try:
            driver.begin()
        except BaseException as error:  # as the supervisor does: the lease would be renewed after the test
            driver.close(Ending(Outcome.FAILED, error, progressed=False))
            raise
        return Spark(self, driver, self.queries[-1], progress)

    def overtaken(self) -> None:
        """Let another driver take over the job."""
        Store.open(str(self.folder / "store"), JOB).log.begin_incarnation(ELSEWHERE, "latest", 600_000, takeover=True)

    def epochs_of(self, what):
        return [epoch for kind, epoch in self.listener.events if kind == what]

    def state(self):
        return self.store.reopened().log.state()

    def manifests(self):
        log = self.store.reopened().log
        return [log.manifest(brief.epoch) for brief in log.state().epochs]


class Spark:
    """Plays Spark for one incarnation: batches of one task, and the thread that watches the query."""

    def __init__(self, bench: Bench, driver: SparkIncarnation, query: FakeQuery, progress: Progress):
        self.bench, self.driver, self.query, self.progress = bench, driver, query, progress
        self.loop, self.lanes = bench.parts["CoordinatorLoop"], bench.parts["Lanes"]
        self.protocol, *_ = bench.parts["recorded"]
        self.batches = self.rows = 0
        self.ending = None
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def _watch(self):
        self.ending = self.driver.watch()

    def marker(self) -> ControlMarker:
        """Return the marker that the control source offers now."""
        return self.query.description.control.newest

    def barrier(self, epoch: int) -> ControlMarker:
        """Wait until the barrier of `epoch` is offered."""
        return eventually(
            lambda: (marker := self.marker()).kind == BARRIER and marker.epoch == epoch and marker, "barrier"
        )

    def batch(self, *values: int, marker: ControlMarker | None = None, reports: Sequence[Report] = ()) -> None:
        """Run one micro-batch: stage `values`, with the marker offered now (or `marker`) in the batch."""
        driver, plan, number = self.driver, self.bench.plan, self.batches
        self.batches += 1
        self.rows += len(values)
        offsets = BatchOffsets(number, 0, (json.dumps({"n": self.rows}),), (marker or self.marker()).number)
        plan.checkpoint(driver.incarnation).write_bytes(f"offsets/{number}", b"as Spark writes one")
        stage = SinkStage("out", StagePlan(), plan.store.staged("out").location, driver.incarnation)
        with StageWriter(stage, number) as writer:
            writer.write(pa.table({"v": pa.array(values, pa.int64())}))
            staged = [Report("tap", 0, number, "out", asdict(file)) for file in writer.close()]
        if not self.query.is_over():
            self.query.on_batch(offsets, [*staged, *reports], 5)

    def epoch(self, epoch: int, *values: int) -> None:
        """Run a batch that ends `epoch`, and wait for its commit."""
        self.barrier(epoch)
        self.batch(*values)
        eventually(lambda: epoch in self.bench.epochs_of("committed"), f"commit of {epoch}")

    def taken_in(self) -> None:
        """Wait until the coordinator has handled the last batch."""
        seen = threading.Event()
        self.loop.post(seen.set)
        assert seen.wait(WAIT_S)

    def play_until(self, done) -> None:
        """Run empty batches, each with the marker offered then, until `done()`."""

        def played():
            if not done():
                self.batch()
            return done()

        eventually(played, "the end of play")

    def ended(self):
        self._watching.join(WAIT_S)
        assert self.ending is not None, "the incarnation has not ended"
        return self.ending

    def final(self) -> int:
        """Wait until the last epoch is open."""
        return eventually(lambda: self.protocol.is_ending and self.protocol.open_epoch, "final epoch")

    def stopped(self, *values: int):
        """Request a stop and run the last batch."""
        self.driver.request_stop()
        self.barrier(self.final())
        self.batch(*values)
        return self.ended()


def an_operator():
    """An operator of two key groups, with the attributes that an incarnation reads."""
    source, schemas = SourceNode("in", FakeSource(), SCHEMA), {"key_ddl": "k string", "state_ddl": "total bigint"}
    return SimpleNamespace(name="totals", keys=("k",), parent=source, operator=None, **schemas)
