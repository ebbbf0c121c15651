"""A job in place of a streaming query: the request of the test's writer, and the handle for the test.

The job restarts after every batch that Spark would have run. So each test of several batches also judges the state of a
restarted job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import spark_ckpt as ckpt
from integration_tests.sparks_suites.input import FORMATS, BatchesSource, records_of
from integration_tests.sparks_suites.plans import Leaf, leaves, on_other_input
from spark_ckpt.api.sparks_state import laid_out
from spark_ckpt.store.existing import existing_store

ENOUGH_S = 300.0
PUBLISH_S = 20
"""Longest time for a call of the test's function. A function whose assertion fails is called again until then."""
BatchFunction = Callable[[DataFrame, int], None]
Change = Callable[[DataFrame], DataFrame]


class NoCounterpart(Exception):
    """The test requests a feature that a job does not have."""


@dataclass
class Request:
    """The request of a test's writer."""

    frame: DataFrame
    mode: str = "append"
    format: str | None = None
    name: str | None = None
    partition: list[str] = field(default_factory=list)
    table: str | None = None
    function: BatchFunction | None = None
    options: dict[str, str] = field(default_factory=dict)
    lacks: str | None = None


@dataclass
class Site:
    """Files of one job. A query with the same `checkpointLocation` continues the same job.

    `seen`: names of the files that the job got; `batches`: their records, by number. `epochs`: those that had rows.
    `partitions`: number of partitions of the state, once the test has changed it.
    """

    store: Path
    seen: set[str] = field(default_factory=set)
    batches: dict[int, list[str]] = field(default_factory=dict)
    epochs: list[int] = field(default_factory=list)
    partitions: int | None = None
    runs: int = 0

    def put(self, records: list[str]) -> None:
        """Add a batch at the job's next position: batches without rows have advanced it."""
        self.batches[0 if not self.runs else self._position()] = records

    def checkpoint(self) -> str:
        """Return a checkpoint with the state of the newest epoch, as `ckpt.state_frame` reads it."""
        store = existing_store(str(self.store))
        epoch = store.log.state().latest
        state = store.log.manifest(epoch).spark_state
        assert state is not None
        return str(laid_out(SparkSession.active(), store, state, epoch))

    def _position(self) -> int:
        log = existing_store(str(self.store)).log
        (cursor,) = log.manifest(log.state().latest).cursors.values()
        return int(str(cursor["batches"]))


class JobQuery:
    """Has the methods of `StreamingQuery` that a test calls; those of `Run` are the job's own.

    `lacks` gets features that a job does not have. `planted` changes the rows of the source, for a planted bug.
    """

    def __init__(self, request: Request, site: Site, lacks: list[str], planted: Change) -> None:
        self.name = request.name
        self.error: Exception | None = None
        self.lacks = lacks
        self.raised: Exception | None = None
        """The first error of the test's own function of a batch."""
        self._request = request
        self._site = site
        self._planted = planted
        self._spark = request.frame.sparkSession
        self._leaves = leaves(request.frame)
        self._rows: list[Any] = []
        self._run: ckpt.Run | None = None
        self._stopped = False

    def begin(self) -> None:
        """Start the job at once if its input has no end; else `processAllAvailable` does. Raises `NoCounterpart`."""
        if self._request.lacks:
            self._lacking(self._request.lacks)
        for leaf in self._leaves:
            self._source(leaf)
        if self._endless:
            self._begin()

    def end(self) -> None:
        """End the job if the test has not stopped it."""
        with suppress(Exception):
            self.stop()

    # -- the handle ----------------------------------------------------------------------------------------------------

    @property
    def isActive(self) -> bool:
        return not self._stopped and self.error is None

    def processAllAvailable(self) -> None:
        """Run the job to the end of its input, once per batch that Spark would run."""
        self._end_run()
        for files in self._pending():
            self._site.put(records_of(self._spark, self._leaves[0], files))
            self._guarded(lambda: self._ended(self._begin(availableNow=True)))
        if self._endless:
            self._begin()

    def awaitTermination(self, timeout: Any = None) -> bool:
        if self._stopped or self.error:
            return self._end_run()
        run = self._run if self._run is not None and not self._run.has_ended else self._begin()
        return bool(self._guarded(lambda: run.awaitTermination(timeout)))

    def stop(self) -> None:
        self._stopped = True
        self._end_run()

    def exception(self) -> Exception | None:
        return self.error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if hasattr(ckpt.Run, name):
            return getattr(self._run, name) if self._run is not None else None
        return self._lacking(f"`StreamingQuery.{name}`")

    # -- the job -------------------------------------------------------------------------------------------------------

    def _begin(self, **arguments: Any) -> ckpt.Run:
        site, spark = self._site, self._spark
        job = ckpt.Job(
            spark,
            "suite",
            str(site.store),
            interval="1 hour",
            trigger="10 ms",
            publish_timeout=PUBLISH_S,
            max_failed_epochs=0,
            shuffle_partitions=site.partitions or int(spark.conf.get("spark.sql.shuffle.partitions")),
            handle_signals=False,
        )
        first, *others = [job.source(f"in{number}", self._source(leaf)) for number, leaf in enumerate(self._leaves)]
        rows = first.transform(self._result, *others, outputMode=self._request.mode)
        rows.foreachBatch(self._publish)
        site.runs += 1
        self._run = self._guarded(lambda: job.start(**arguments))
        return self._run

    def _result(self, *frames: DataFrame) -> DataFrame:
        return on_other_input(self._request.frame, [self._planted(frame) for frame in frames])

    def _publish(self, frame: DataFrame, epoch: int) -> None:
        epochs = self._site.epochs
        epochs.extend({epoch}.difference(epochs))
        try:
            self._write(frame, epochs.index(epoch) if self._endless else len(self._site.batches) - 1)
        except Exception as error:
            self.raised = self.raised or error
            raise

    def _write(self, frame: DataFrame, batch: int) -> None:
        request = self._request
        if request.function is not None:
            request.function(frame, batch)
        elif request.format == "memory":
            before = [] if request.mode == "complete" else self._rows
            self._rows = before + frame.collect()
            self._spark.createDataFrame(self._rows, frame.schema).createOrReplaceTempView(request.name)
        elif request.format not in ("noop", "console"):
            writer = frame.write.mode("append").format(request.format or "parquet").partitionBy(*request.partition)
            writer.saveAsTable(request.table) if request.table else writer.save(request.options["path"])

    def _ended(self, run: ckpt.Run) -> None:
        if not run.awaitTermination(ENOUGH_S):
            raise TimeoutError("the run has not ended")

    def _end_run(self) -> bool:
        run = self._run
        if run is not None and not run.has_ended and self.error is None:
            self._guarded(lambda: run.stop(ENOUGH_S))
        return True

    def _guarded(self, action: Callable[[], Any]) -> Any:
        """Raise the error of a job as Spark raises that of a query: a test can only catch this class."""
        try:
            return action()
        except ckpt.CkptError as error:
            text = f"{error.condition}: {error}\n{error.context.get('traceback', '')}"
            self.error = StreamingQueryException(desc=text, stackTrace="")
            raise self.error from error

    # -- its input -----------------------------------------------------------------------------------------------------

    @property
    def _endless(self) -> bool:
        return any(leaf.format == "rate" for leaf in self._leaves)

    def _source(self, leaf: Leaf) -> Any:
        if leaf.format == "rate":
            return ckpt.SparkSource("rate", leaf.options)
        if leaf.format not in FORMATS:
            self._lacking(f"the source `{leaf.format}`")
        return BatchesSource(leaf, self._site.batches)

    def _pending(self) -> Iterator[list[Path]]:
        """Yield the new files of each batch, in Spark's order."""
        if self._endless:
            return
        (leaf,) = self._leaves
        found = [path for path in Path(leaf.options["path"]).glob("[!._]*") if path.is_file()]
        files = sorted(
            (path for path in found if path.name not in self._site.seen),
            key=lambda path: (path.stat().st_mtime_ns // 1_000_000, path.name),
        )
        self._site.seen.update(path.name for path in files)
        size = int(leaf.options.get("maxfilespertrigger", 1000))
        for first in range(0, len(files), size):
            yield files[first : first + size]

    def _lacking(self, what: str) -> Any:
        self.lacks.append(what)
        raise NoCounterpart(what)
