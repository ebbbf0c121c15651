"""The driver's work per batch and per epoch, and its manifests, as tasks and key groups grow. No Spark: tasks are stubs.

Run: python -m benchmarks.inside.driver_at_scale [--epochs N], or with --log N for logs of N epochs. Reports, rules,
manifest, log and tables are those of a job; only their content is drawn. Every key group changes in every epoch, and
compacts its chain at its eighth file.

CPU time of the process, because the log's writes wait for the disk of the machine.
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from checkpoint_protocols.machine import Effect
from spark_ckpt.connector import Json, StagedFile
from spark_ckpt.coordination.job_shape import JobShape, Limits, OperatorShape, SinkPlace
from spark_ckpt.coordination.manifests import stamped, summary_of
from spark_ckpt.coordination.messages import (
    ArmTimer,
    BatchDone,
    CommitEpoch,
    EpochCommitted,
    IntervalElapsed,
    Publish,
    PublishEnded,
    QueryStarting,
)
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.coordination.reports import Report, action_parts_ms, add, latest_attempts
from spark_ckpt.epochs.records import Holder, Manifest, SinkAck, StateFile, StateRange
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.store.store import Store

OPERATOR, SINK = "sums", "out"
CHAIN = 8
"""Files in a key group's chain before a full file starts a new chain."""
_MS = 1000
_ROW = pa.table(
    {
        "k": pa.array([1], pa.int64()),
        "total": pa.array([1], pa.int64()),
        "ckpt_key_group": pa.array([0], pa.int32()),
        "ckpt_key_hash": pa.array([0], pa.int64()),
        "ckpt_epoch": pa.array([1], pa.int64()),
        "ckpt_op": pa.array(["put"]),
        "ckpt_timeout_ms": pa.array([0], pa.int64()),
    }
)


@dataclass(slots=True)
class Clock:
    """CPU milliseconds of the process, by part of the work."""

    parts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure the block under a name."""
        before = time.process_time()
        yield
        self.parts[name].append((time.process_time() - before) * _MS)

    def median(self, name: str) -> float:
        """Median of a part, 0 without a measurement."""
        return statistics.median(self.parts[name]) if self.parts[name] else 0.0


class Folder:
    """A store's folder, into which stub tasks write files of one row, without a sync."""

    def __init__(self, path: Path) -> None:
        whole = pa.BufferOutputStream()
        pq.write_table(_ROW, whole)
        self._bytes = whole.getvalue().to_pybytes()
        self._places = {"edges": path / "edges" / SINK, "state": path / "state" / OPERATOR}

    def put(self, kind: str, file: str) -> int:
        """Write a file and return its size in bytes."""
        self._places[kind].mkdir(parents=True, exist_ok=True)
        with open(f"{self._places[kind]}/{file}", "wb") as written:  # noqa: PTH123 - twenty thousand of them an epoch
            return written.write(self._bytes)


@dataclass(frozen=True, slots=True)
class Job:
    """Number of tasks after the shuffle, and of key groups of its one operator."""

    tasks: int
    groups: int

    @property
    def shape(self) -> JobShape:
        """The job as the rules need it."""
        operators = (OperatorShape(OPERATOR, "k BIGINT", "total BIGINT", self.groups),)
        return JobShape("scale", ("in",), {SINK: SinkPlace("")}, operators, Limits())

    def updates(self, batch: int, epoch: int | None, folder: Folder) -> list[bytes]:
        """Return the reports of a batch as Spark brings them: one pickle per task and step. `epoch`: its barrier's."""
        found = [[self._staged(task, batch, folder)] for task in range(self.tasks)]
        body: dict[str, Json] = {"late": 0, "began_ms": 1000.5, "ended_ms": 1003.5, "snapshot_ms": 1.5}
        for task in range(min(self.tasks, self.groups)):
            snapshot = {} if epoch is None else self._snapshot(task, epoch, folder)
            found.append([Report("operator", task, 7, OPERATOR, {**body, **snapshot})])
        times: dict[str, Json] = {"began_ms": 1000.0, "ended_ms": 1010.0, "rows_in": 10}
        return [pickle.dumps(each) for each in (*found, [Report("input", 0, 0, "sources", times)])]

    def _staged(self, task: int, batch: int, folder: Folder) -> Report:
        path = f"ckpt-{SINK}-i1-b{batch}-t{task}-0-{uuid.uuid4().hex}.parquet"
        stats = json.dumps({"numRecords": 1, "minValues": {"k": 1}, "maxValues": {"k": 1}, "nullCount": {"k": 0}})
        file = StagedFile(path, folder.put("edges", path), 1, 0, batch, task, 0, {}, stats, _digest())
        return Report("tap", task, 7, SINK, asdict(file))

    def _snapshot(self, task: int, epoch: int, folder: Folder) -> dict[str, Json]:
        """Return a task's report with its file: full at the first epoch, and then at every eighth in turns."""
        path = f"i1-e{epoch}-t{task}-{uuid.uuid4().hex}.parquet"
        groups = list(range(task, self.groups, self.tasks))
        file = StateFile(
            path=path,
            size_bytes=folder.put("state", path),
            sha256=_digest(),
            ranges=tuple(StateRange(group, 1, 4, 1000, _digest()) for group in groups),
            epoch=epoch,
            incarnation=1,
            kind="full" if epoch == 1 or (epoch + task) % CHAIN == 0 else "changes",
        )
        return {"epoch": epoch, "groups": list(groups), "files": [file.model_dump(mode="json")]}


def received(updates: list[bytes]) -> list[Report]:
    """Return the reports that count, as the driver's accumulator collects them."""
    reports: list[Report] = []
    for update in updates:
        for report in pickle.loads(update):
            add(reports, report)
    return latest_attempts(reports)


def _digest() -> str:
    return uuid.uuid4().hex + uuid.uuid4().hex


class Driver:
    """One incarnation without Spark: rules and store are real, the batches are drawn."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.clock = Clock()
        self.folder = Folder(folder)
        opened = Store.open(str(folder), job.shape.job)
        assert opened is not None
        self.store = opened
        point = self.store.log.begin_incarnation(Holder(host="stub"), lease_ms=600_000)
        self.rules = EpochProtocol(job.shape, point)
        self.batch = 0
        self.markers = 0
        self.interval: IntervalElapsed | None = None
        self.carry_out(self.rules.handle(QueryStarting(behind=False)))

    def run_batch(self, epoch: int | None = None) -> None:
        """Run a batch; with `epoch` it holds that epoch's barrier."""
        self.batch += 1
        updates = self.job.updates(self.batch, epoch, self.folder)
        name = "batch" if epoch is None else "barrier's batch"
        with self.clock.part(name):
            reports = received(updates)
            action_parts_ms(reports)
            done = BatchDone(self.batch, {"in": {"n": self.batch}}, 0, self.markers, tuple(reports))
            effects = self.rules.handle(done)
        self.carry_out(effects)

    def run_epoch(self, batches: int = 2) -> None:
        """Run an epoch of `batches` batches, up to its publish."""
        for _ in range(batches - 1):
            self.run_batch()
        assert self.interval is not None
        with self.clock.part("barrier"):
            offered = self.rules.handle(self.interval)
        self.carry_out(offered)
        self.run_batch(self.rules.open_epoch)

    def carry_out(self, effects: list[Effect]) -> None:
        """Carry out effects as the host of the rules does."""
        for effect in effects:
            name = type(effect).__name__
            if isinstance(effect, ArmTimer) and isinstance(effect.elapsed, IntervalElapsed):
                self.interval = effect.elapsed
            elif name == "OfferMarker":
                self.markers += 1
            elif isinstance(effect, CommitEpoch):
                self.commit(effect)
            elif isinstance(effect, Publish):
                with self.clock.part("publish"):
                    following = self.rules.handle(PublishEnded(effect.sink, effect.output.epoch))
                self.carry_out(following)

    def commit(self, effect: CommitEpoch) -> None:
        """Commit an epoch and let its tables catch up."""
        with self.clock.part("commit"):
            manifest = stamped(effect.manifest, uuid.uuid4().hex, time.time_ns() // 1_000_000)
            self.store.log.commit_epoch(manifest)
        with self.clock.part("after the commit"):
            summary_of(manifest)
            following = self.rules.handle(EpochCommitted(manifest))
        with self.clock.part("tables"):
            self.store.materialize(manifest, manifest.incarnation)
        self.carry_out(following)

    @property
    def newest(self) -> Manifest:
        """Manifest of the newest committed epoch."""
        return self.rules.cut.base


EPOCH = ("barrier", "barrier's batch", "commit", "after the commit")
"""Parts of an epoch of one batch, on the driver's thread."""
PARTS = ("batch", *EPOCH, "tables")


def measured(job: Job, epochs: int) -> list[str]:
    """Return the cells of a row: the job, milliseconds of each part and of an epoch, size of the manifest, reading, retention."""
    with tempfile.TemporaryDirectory() as name:
        driver = Driver(job, Path(name) / "store")
        for _ in range(epochs):
            driver.run_epoch()
        body = driver.newest.model_dump_json()
        clock = Clock()
        with clock.part("start"):
            again = Store.open(name + "/store", job.shape.job)
            assert again is not None
            again.log.begin_incarnation(Holder(host="stub"), lease_ms=1, takeover=True)
        with clock.part("retention"):
            again.retain(Retention(keep_last=epochs // 2, slack=0))
    parts = [f"{driver.clock.median(part):,.1f}" for part in PARTS]
    # The mean includes garbage collections of Python, which run every few epochs.
    epoch = sum(statistics.mean(driver.clock.parts[part]) for part in EPOCH)
    sizes = f"{len(body) / 1e6:,.2f}"
    return [
        f"{job.tasks:,}",
        f"{job.groups:,}",
        *parts,
        f"{epoch:,.1f}",
        sizes,
        *(f"{clock.median(p):,.0f}" for p in ("start", "retention")),
    ]


def lengthen(driver: Driver, epochs: int) -> None:
    """Commit copies of the newest manifest, without retention, until the log has this many epochs."""
    newest = driver.newest
    for epoch in range(newest.epoch + 1, epochs + 1):
        acks = (SinkAck(sink=SINK, epoch=epoch - 1),)
        follows = {"epoch": epoch, "base": epoch - 1, "previous": epoch - 1, "acks": acks}
        manifest = stamped(newest.model_copy(update=follows), uuid.uuid4().hex, time.time_ns() // 1_000_000)
        with driver.clock.part("commit of a copy"):
            driver.store.log.commit_epoch(manifest)


def of_a_long_log(job: Job, epochs: int) -> list[str]:
    """Return the cells of a row: the job, epochs, size of the log, milliseconds of commits, of reading and of a start."""
    with tempfile.TemporaryDirectory() as name:
        driver = Driver(job, Path(name) / "store")
        for _ in range(CHAIN + 1):
            driver.run_epoch()
        lengthen(driver, epochs)
        commits = driver.clock.parts["commit of a copy"]
        first, last = (statistics.median(part) for part in (commits[:100], commits[-100:]))
        size = sum(path.stat().st_size for path in (Path(name) / "store" / "epochs").rglob("*") if path.is_file())
        clock = Clock()
        with clock.part("read"):
            again = Store.open(name + "/store", job.shape.job)
        with clock.part("start"):
            again.log.begin_incarnation(Holder(host="stub"), lease_ms=1, takeover=True)
    cells = [f"{job.groups:,}", f"{epochs:,}", f"{size / 1e6:,.1f}", f"{first:,.1f}", f"{last:,.1f}"]
    return [*cells, f"{clock.median('read'):,.0f}", f"{clock.median('start'):,.0f}"]


def of_long_logs(lengths: list[int], groups: list[int]) -> None:
    """Print a Markdown table for jobs of ten tasks."""
    heads = ["key groups", "epochs", "log, MB", "first commits, ms", "last commits, ms", "read, ms", "start, ms"]
    print(f"| {' | '.join(heads)} |\n|{'---:|' * len(heads)}")
    for each in groups:
        for length in lengths:
            print(f"| {' | '.join(of_a_long_log(Job(10, each), length))} |", flush=True)


def main(epochs: int, tasks: list[int], groups: list[int]) -> None:
    """Print a Markdown table."""
    heads = ["tasks", "key groups", *(f"{part}, ms" for part in (*PARTS, "epoch (mean)")), "manifest, MB"]
    heads += ["start, ms", "retention, ms"]
    print(f"| {' | '.join(heads)} |\n|{'---:|' * len(heads)}")
    for each in groups:
        for behind in tasks:
            print(f"| {' | '.join(measured(Job(behind, each), epochs))} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--tasks", type=int, nargs="*", default=[10, 100, 1_000])
    parser.add_argument("--groups", type=int, nargs="*", default=[64, 2_000, 20_000])
    parser.add_argument("--log", type=int, nargs="*", help="measure logs of so many epochs instead")
    asked = parser.parse_args()
    if asked.log:
        of_long_logs(asked.log, asked.groups)
    else:
        main(asked.epochs, asked.tasks, asked.groups)
