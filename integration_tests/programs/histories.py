"""One drawn history: the same programs over the same batches, as a plain query and as a job that fails, restarts and restores.

A round is some batches of rows and the runs on them: the plain query reads the present input and stops; the job runs to its end,
and may fail at a drawn failpoint first. The oracle is plain Spark.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from spark_ckpt_delta import DeltaSink

import spark_ckpt as ckpt
from integration_tests.programs import keyed_functions, vocabulary
from integration_tests.programs.tape import File, Row, Tape
from integration_tests.programs.vocabulary import APPLY, Program
from integration_tests.survival.process import wait_until
from spark_ckpt import failpoints
from spark_ckpt.store.existing import existing_store

for _module in (keyed_functions, vocabulary):
    cloudpickle.register_pickle_by_value(sys.modules[_module.__name__])  # workers cannot import from the tests' folder

_STREAMING = "spark.sql.streaming"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STORES: Mapping[str, Mapping[str, str]] = {
    "HDFS-backed": {},
    "RocksDB": {"stateStore.providerClass": _ROCKSDB},
    "RocksDB, changelog": {
        "stateStore.providerClass": _ROCKSDB,
        "stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
    "RocksDB, changelog, format 2": {
        "stateStore.providerClass": _ROCKSDB,
        "stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "stateStore.checkpointFormatVersion": "2",
    },
}
_FEWER_PROCESSES = {
    "fs.file.impl.disable.cache": "true",
    f"{_STREAMING}.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    f"{_STREAMING}.checkpoint.fileChecksum.enabled": "false",
    # Twenty programs make a long plan, which Spark would write out for each batch.
    "spark.sql.maxPlanStringLength": "1000",
    "spark.sql.ui.explainMode": "simple",
}
"""Settings that a job also sets: otherwise Spark would start several processes for each file of the checkpoint."""
UNCOMMITTED = "EPOCH_COMMITTING:raise"
POINTS = ("", "", UNCOMMITTED, UNCOMMITTED, "EPOCH_COMMITTED:raise", "PUBLISH_COMMITTED:raise", "ACKED:raise")
_ENOUGH_S = 600.0

Rows = Counter[str]


class HistoryDiffers(AssertionError):
    """A job's rows differ from those of the plain query."""


class PlainQueryFailed(Exception):
    """Plain Spark failed, so there is no comparison; it is no fault of the job."""


@dataclass(frozen=True)
class History:
    """The draws of one seed.

    - `rounds`: files of each round; the rows of each input by its name. `points`: the job's failpoint in each round.
    - `back`: the round to restore to at the end; None for no restore.
    """

    seed: int
    store: str
    mode: str
    partitions: int
    deltas: int
    interval: str
    programs: tuple[Program, ...]
    rounds: tuple[tuple[File, ...], ...]
    points: tuple[str, ...]
    back: int | None

    @classmethod
    def drawn(cls, seed: int, programs: int, store: str | None = None, mode: str | None = None) -> History:
        """Draw a history of `programs` programs; `store` and `mode` may be given."""
        draw = random.Random(seed)
        drawn = draw.choice(tuple(STORES)), draw.choice(("append", "append", "append", "update"))
        store, mode = store or drawn[0], mode or drawn[1]
        delay_s = draw.choice((0, 5, 10))
        made: list[Program] = []
        while len(made) < programs:
            one = vocabulary.program(draw, f"p{len(made)}", mode, store != "HDFS-backed", delay_s)
            # Spark allows one such operator per query, and none together with aggregations in update mode.
            if APPLY not in one.text or (mode == "append" and not any(APPLY in other.text for other in made)):
                made.append(one)
        inputs = ("left", "right") if any(program.joins for program in made) else ("left",)
        rounds = tuple(_rounds(draw, inputs))
        points = tuple(draw.choice(POINTS) for _ in rounds)
        back = draw.choice((None, len(rounds) - 1, len(rounds) - 2))
        interval = "1 hour" if any(len(files) > 1 for files in rounds) else draw.choice(("1 hour", "50 ms"))
        return cls(
            seed,
            store,
            mode,
            draw.choice((1, 1, 1, 2)),
            draw.choice((1, 3, 10)),
            interval,
            tuple(made),
            rounds,
            points,
            back,
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(self.rounds[0][0])

    def settings(self) -> dict[str, str]:
        """Settings of the session."""
        given = {"stateStore.minDeltasForSnapshot": str(self.deltas), **STORES[self.store]}
        settings = {f"{_STREAMING}.{name}": value for name, value in given.items()} | _FEWER_PROCESSES
        # RocksDB's state stores support only the default.
        files = "Raw" if self.store == "HDFS-backed" else ""
        settings[f"{_STREAMING}.unsupportedOperationCheck"] = "false"  # it refuses two aggregations in update mode
        settings["fs.file.impl"] = f"org.apache.hadoop.fs.{files}LocalFileSystem"
        return settings | {"spark.sql.shuffle.partitions": str(self.partitions)}

    def results(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Return the rows of all programs."""
        made = [
            program(*(frames[name] for name in (self.inputs if program.joins else ("left",))))
            for program in self.programs
        ]
        return self.gathered(reduce(DataFrame.union, made))

    def gathered(self, frame: DataFrame) -> DataFrame:
        """Return the rows in one task, which costs less than one for each program."""
        # Spark's RocksDB keeps the open store of an aggregation per thread: two in one task would meet.
        return frame.coalesce(1) if self.store == "HDFS-backed" else frame

    def text(self) -> str:
        """Description of all draws."""
        programs = "\n".join(f"  {program.name}: {program.text}" for program in self.programs)
        files = [len(files) for files in self.rounds]
        return (
            f"seed {self.seed}: {self.store}, {self.mode}, {self.partitions} partitions, a snapshot after {self.deltas}"
            f" batches, interval {self.interval}, files {files}, failures {self.points}, restore {self.back}\n{programs}"
        )


def _rounds(draw: random.Random, inputs: Sequence[str]) -> Iterator[tuple[File, ...]]:
    now = 0.0
    many = draw.random() < 0.5
    for _ in range(2):
        files = []
        for _ in range(draw.choice((1, 2, 3)) if many else 1):
            now += draw.choice((0, 4, 12, 30))
            files.append({name: _rows(draw, now) for name in inputs})
        yield tuple(files)
    # This row closes all open windows.
    yield ({name: [("z", 1, now + 1000)] for name in inputs},)


def _rows(draw: random.Random, now: float) -> list[Row]:
    # The newest row of a file has the same time in each input, and passes each filter. Otherwise the watermark would depend on
    # the restarts, in plain Spark, too: after a restart it stays until rows have reached each `withWatermark` of a query.
    newest = (draw.choice("abc"), draw.choice((1, 2, 3, 4)), round(now + 8))
    older = (
        (draw.choice("abc"), draw.randrange(8), round(now + draw.uniform(-20, 8))) for _ in range(draw.randrange(8))
    )
    return [*older, newest]


@dataclass
class PlainSite:
    """The plain side of a history. `shown`: its rows by batch."""

    spark: SparkSession
    folder: Path
    history: History
    tape: Tape = field(default_factory=Tape)
    shown: dict[int, list[str]] = field(default_factory=dict)

    def run(self, files: Sequence[File]) -> Rows:
        """Read some files and a batch without rows; return all rows so far."""
        # Spark repeats a batch that it has planned, so its number is used.
        planned = [int(path.name) for path in (self.folder / "offsets").glob("[0-9]*")]
        self.tape.put(files, max(planned, default=-1) + 1)
        return self.read()

    def read(self) -> Rows:
        """Read to the end of the tape; return all rows so far."""
        frames = {name: self.tape.source(name).read(self.spark, {"rows": 0}) for name in self.history.inputs}
        writer = self.history.results(frames).writeStream.outputMode(self.history.mode)
        writer = writer.option("checkpointLocation", str(self.folder))
        query = writer.foreachBatch(self._keep).start()
        try:
            wait_until(
                lambda: query.exception() is not None or (self.folder / "commits" / str(self.tape.end)).exists(),
                f"the plain query commits batch {self.tape.end}",
            )
            # Not after the stop: Spark may report an interruption of its planning as an error.
            error = query.exception()
        finally:
            query.stop()
        if error is not None:
            raise PlainQueryFailed(str(error)) from error
        return Counter(row for rows in self.shown.values() for row in rows)

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.shown[batch] = [row[0] for row in frame.collect()]


@dataclass
class JobSite:
    """The job's side of a history. `ends`: its newest epoch after each round."""

    spark: SparkSession
    folder: Path
    history: History
    tape: Tape = field(default_factory=Tape)
    ends: list[int] = field(default_factory=list)

    @property
    def store(self) -> Path:
        """Folder of the store."""
        return self.folder / "store"

    def job(self) -> ckpt.Job:
        """Return the job of the history's programs."""
        history = self.history
        job = ckpt.Job(
            self.spark, "programs", str(self.store), interval=history.interval, trigger="10 ms", key_groups=1
        )
        streams = {name: job.source(name, self.tape.source(name)) for name in history.inputs}
        made = [
            streams["left"].transform(program, *([streams["right"]] if program.joins else []), outputMode=history.mode)
            for program in history.programs
        ]
        together = reduce(lambda one, other: one.union(other), made)
        together.transform(history.gathered).to(DeltaSink(str(self.folder / "table")))
        return job

    def run(self, restore: int | str = "latest") -> None:
        """Run to the end of the present input."""
        run = self.job().start(restore=restore, availableNow=True)
        assert run.awaitTermination(_ENOUGH_S), "the run has not ended"

    def fail(self, point: str) -> None:
        """Run until a failpoint ends the run, or to the end if no task reaches it."""
        failpoints.arm(point)
        try:
            with suppress(ckpt.CkptError, failpoints.FailpointHit):  # a start may fail as well
                self.run()
        finally:
            failpoints.arm("")

    def rows(self) -> Rows:
        """Return the rows of the table; none before it exists."""
        if not (self.folder / "table").exists():
            return Counter()
        table = pa.table(DeltaTable(str(self.folder / "table")).scan(columns=["row"]).read_all())
        return Counter(table.column("row").to_pylist())

    def position(self) -> int:
        """Return the number of the next batch."""
        if not self.store.exists():
            return 0
        opened = existing_store(str(self.store)).log
        return max(int(str(cursor["rows"])) for cursor in opened.manifest(opened.state().latest).cursors.values())

    def latest(self) -> int:
        """Return the newest epoch."""
        return existing_store(str(self.store)).log.state().latest


def check(spark: SparkSession, folder: Path, history: History) -> dict[str, int]:
    """Run a history in both forms; return counts. Raises `HistoryDiffers`, or the error of a job that cannot continue."""
    with session_set(spark, history.settings()), ThreadPoolExecutor(1) as pool:
        wanted = pool.submit(_wanted, spark, folder / "plain", history)
        found = list(_found(JobSite(spark, folder / "job", history)))
        for number, (ours, theirs) in enumerate(zip(found, wanted.result(), strict=True), start=1):
            restored = number > len(history.rounds)
            _compare(history, ours, theirs, f"restored to round {history.back}" if restored else f"round {number}")
    return {"rows": found[-1].total(), "failures": sum(map(bool, history.points))}


def verdict(spark: SparkSession, folder: Path, history: History) -> tuple[dict[str, int], str]:
    """Run a history in both forms; return counts, and the broken promise, if any."""
    try:
        return check(spark, folder, history), ""
    except Exception as error:  # noqa: BLE001 - a job that does not go on breaks the promise, too
        return {"rows": 0, "failures": 0}, f"{type(error).__name__}: {error}"[:3000]


def _found(site: JobSite) -> Iterator[Rows]:
    """Yield the rows of the job's table after each round, and after the restore."""
    history = site.history
    for files, point in zip(history.rounds, history.points, strict=True):
        # An epoch that was not committed is repeated, and more rows have arrived meanwhile.
        late = files[1:] if point == UNCOMMITTED else ()
        site.tape.put(files[: len(files) - len(late)], site.position())
        if point:
            site.fail(point)
            site.tape.put(late)
        site.run()
        site.ends.append(site.latest())
        yield site.rows()
    if history.back is not None:
        site.run(restore=site.ends[history.back - 1])
        yield site.rows()


def _wanted(spark: SparkSession, folder: Path, history: History) -> list[Rows]:
    """Return the expected rows of the table after each round, and after the restore, when later rows come again."""
    site, after, kept = PlainSite(spark, folder / "query", history), [], folder / "kept"
    for number, files in enumerate(history.rounds, start=1):
        after.append(site.run(files))
        if number == history.back:
            shutil.copytree(site.folder, kept)
    if history.back is None:
        return after
    # One run, as that of the job: Spark forgets the watermark of each input when a query stops, so rounds with a stop
    # between them may have fewer rows.
    return [*after, after[-1] + PlainSite(spark, kept, history, site.tape).read()]


def _compare(history: History, found: Rows, wanted: Rows, when: str) -> None:
    if found == wanted:
        return
    lost, extra = wanted - found, found - wanted
    names = sorted({row.split(" ", 1)[0] for row in [*lost, *extra]})
    named = "\n".join(f"  {program.name}: {program.text}" for program in history.programs if program.name in names)
    raise HistoryDiffers(
        f"{when}: lost {lost.total()}, too many {extra.total()}\n{named}\nlost {_some(lost)}\ntoo many {_some(extra)}"
        f"\nof {history.text()}"
    )


def _some(rows: Rows) -> list[str]:
    return sorted(rows.elements())[:6]


@contextmanager
def session_set(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Set settings of a session for a while."""
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
