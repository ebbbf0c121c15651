"""Incarnations that end as scripted, and a bench to run them, for the tests of the supervisor."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from incarnation_kit import JOB, SCHEMA, WAIT_S, FakeSink, FakeSource

from spark_ckpt.config import JobConfig
from spark_ckpt.connector import StagePlan
from spark_ckpt.coordination.messages import Outcome
from spark_ckpt.driver import run as run_module
from spark_ckpt.driver import supervisor as supervisor_module
from spark_ckpt.driver.incarnation import Ending
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.query.failures import QueryFailed
from spark_ckpt.driver.run import Run
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.plan.graph import SinkBinding, SourceNode
from spark_ckpt.store.store import Store

_LOCAL = SimpleNamespace(sparkContext=SimpleNamespace(master="local[1]"))
STOPPED = Ending(Outcome.STOPPED, None, True)


def failed(progressed=False, error=None):
    return Ending(Outcome.FAILED, error or QueryFailed("executor lost"), progressed)


class FakeIncarnation:
    """Begins when an event is set, or raises an error, and ends as scripted; "running" until a stop is requested."""

    def __init__(self, bench, plan, point):
        self.bench, self.plan, self.incarnation, self.base = bench, plan, point.incarnation, point.manifest.epoch
        self.asked = threading.Event()
        self.savepoints: list[str] = []
        self.asked_epochs = 0
        self.cursors = {"in": {"n": 0}}
        self.abandoned = False
        self.has_drained = bench.has_drained
        self.hands_over = bench.hands_over
        bench.incarnations.append(self)

    def begin(self):
        first = self.bench.beginnings.pop(0) if self.bench.beginnings else None
        if isinstance(first, threading.Event):
            assert first.wait(WAIT_S)
        elif first:
            raise first

    def watch(self):
        ending = self.bench.endings.pop(0) if self.bench.endings else "running"
        if ending == "running":
            assert self.asked.wait(WAIT_S)
            ending = STOPPED
        return ending() if callable(ending) else ending

    def request_stop(self):
        self.asked.set()

    def abandon(self, close_within_s):
        self.abandoned = True
        self.asked.set()

    def request_savepoint(self, name):
        self.savepoints.append(name)

    def request_epoch(self):
        self.asked_epochs += 1

    def close(self, ending):
        self.bench.closed.append(ending)


class LossySource(FakeSource):
    """A source that continues behind lost rows; there are none."""

    def past_lost(self, spark, cursor):
        return cursor


def sink_of(parts):
    """Return a class of sinks with this identity."""

    class IdentifiedSink(FakeSink):
        def identity(self, spark):
            return parts

    return IdentifiedSink


class Bench:
    """`source_type`, `sink_type`: a test gives a class of its own more methods. Put on the shared class, they would stay
    in the cache of `isinstance` for protocols.
    """

    source_type, sink_type = FakeSource, FakeSink

    def __init__(self, folder, monkeypatch):
        self.folder, self.incarnations, self.endings, self.beginnings, self.closed = folder, [], [], [], []
        self.has_drained = self.hands_over = False
        self.store = Store.open(str(folder / "store"), JOB)
        monkeypatch.setattr(
            supervisor_module, "SparkIncarnation", lambda plan, point, *_: FakeIncarnation(self, plan, point)
        )
        monkeypatch.setattr(supervisor_module, "PAUSE_S", 0.001)
        monkeypatch.setattr(run_module, "POLL_S", 0.01)

    def plan(self, sinks=("out",), source="in", operator=None, **settings):
        config = JobConfig.of({"max_failed_epochs": 2} | settings, {})
        node = SourceNode(source, self.source_type(), SCHEMA)
        bindings = [SinkBinding(name, self.sink_type(), node, SCHEMA) for name in sinks]
        plans = {name: StagePlan() for name in sinks}
        return JobPlan(_LOCAL, JOB, config, self.store, bindings, [node], [operator] if operator else [], 1, plans)

    def run(self, *endings, beginnings=(), restore="latest", standby=False, listeners=(), drain=False, **options):
        self.endings, self.beginnings = list(endings), list(beginnings)
        return Run.start(self.plan(**options), restore, drain, list(listeners), standby=standby)

    def decide(self, epoch, **fields):
        """Commit an epoch to the log, by an incarnation that has ended."""
        log = self.store.log
        point = log.begin_incarnation(supervisor_module.current_holder(JOB), "latest", 1000, takeover=True)
        log.commit_epoch(
            Manifest(job=JOB, epoch=epoch, incarnation=point.incarnation, attempt=f"a{epoch}", created_ms=0,
                     base=point.manifest.epoch, previous=point.last, **fields)
        )  # fmt: skip
        log.release(point.incarnation)


def ended(run):
    try:
        assert run.awaitTermination(WAIT_S)
    except Exception as error:  # noqa: BLE001 - what the run failed with is what the test looks at
        return error
    return None
