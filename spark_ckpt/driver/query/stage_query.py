"""Streaming query of one incarnation: one Spark action per micro-batch, reports out. `frames` builds its plan."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ckpt.connector import Json
from spark_ckpt.coordination.cut import event_times
from spark_ckpt.coordination.edges import segments_in
from spark_ckpt.coordination.reports import SOURCES, Report
from spark_ckpt.driver.query.batch_phases import Phases, phases_in
from spark_ckpt.driver.query.checkpoint_seed import seed_checkpoint
from spark_ckpt.driver.query.failures import failure_by
from spark_ckpt.driver.query.frames import StageDescription, StageFrames
from spark_ckpt.driver.query.offset_log import BatchOffsets, read_batch_offsets
from spark_ckpt.errors import CkptError, GraphInvalid, StoreOutage
from spark_ckpt.plan.graph import parting_of
from spark_ckpt.plan.plan_order import PlanOrder
from spark_ckpt.spark_internals.batch_action import Interrupted, leave_interruptions_out_of_the_log
from spark_ckpt.spark_internals.checkpoint_files import CHECKPOINT_FOLDERS
from spark_ckpt.spark_internals.running_query import Execution
from spark_ckpt.spark_internals.settings import (
    CHAINED_SETTINGS,
    LOCAL_CHECKPOINT_SETTINGS,
    PARTING_SETTINGS,
    PARTITIONS,
    QUERY_SETTINGS,
    UNCHECKED_SETTINGS,
    complete_settings,
    frame_limits,
    keeps_state_in_rocksdb,
    set_for_a_while,
)
from spark_ckpt.storage_errors import typed_errors_at
from spark_ckpt.store.folders import delete_folder, folders
from spark_ckpt.store.location import Location
from spark_ckpt.tasks.late_watermark import LateWatermark
from spark_ckpt.tasks.reports import Reports

_log = logging.getLogger(__name__)
_STARTING = threading.Lock()
"""Held while a query starts: stages of one session start at the same time, and each leaves the user's settings."""
_QUERY_CONF = QUERY_SETTINGS | {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.ui.explainMode": "simple",
}
_LOCAL_FILES = LOCAL_CHECKPOINT_SETTINGS | {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""Settings for local checkpoints, which save processes and checksums.

Spark's default starts a `readlink` process per file operation. Hadoop's starts a `chmod` per file and one for its
checksum, eight per batch. The checkpoint is disposable and needs no checksums. Hadoop's cache is disabled, because it
holds the file system of the rest of the program.
"""
_REMOVING = "ckpt-old-checkpoints"
_CHECKED_FILES = {"fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem"}
"""For RocksDB's state stores, which know only this file system."""


class StageQuery:
    """Builds and starts the query.

    `on_batch`: called after each batch's action on Spark's thread, with the batch's end, its reports and its duration
    in ms. `is_over`: true once the incarnation has ended, so that nothing waits for the running batch.
    """

    def __init__(
        self,
        spark: SparkSession,
        stage: StageDescription,
        on_batch: Callable[[BatchOffsets, list[Report], int], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._spark = spark
        self._stage = stage
        self._on_batch = on_batch
        self._is_over = is_over
        # One accumulator for the query: the plan is built once and ships it to each batch's tasks.
        self._reports = Reports(spark.sparkContext)
        # Spark numbers the inputs of a plan. The offset log has lines by these numbers and no names.
        self._order = PlanOrder.of(*stage.ends)
        self._frames = StageFrames(spark, stage, self._reports)
        self._late = _late_watermark(spark, stage)
        self._execution: Execution | None = None
        self.failure: CkptError | None = None
        """Error of the batch that ended the query. It is judged here, while Spark's error is complete: Java only
        keeps its text.
        """

    def start(self) -> RunningQuery:
        """Start streaming from the description's cursors. Raises `GraphInvalid` for operations that cannot stream."""
        try:
            return RunningQuery(self._started(), self)
        except AnalysisException as error:
            what = str(error).split("\n", 1)[0]
            raise GraphInvalid(f"Spark cannot run the stream: {what}", hint="use stateless operations") from error

    def _started(self) -> StreamingQuery:
        spark = self._spark
        leave_interruptions_out_of_the_log()
        make_folders(self._stage.checkpoint_uri)
        stage, settings = self._stage, query_settings(self._stage.checkpoint_uri, self._stage.shuffle_partitions)
        modes = {host.output_mode for host in stage.hosts.values()}
        if stage.spark_mode is not None:
            settings |= _with_sparks_state(spark, stage)
            if stage.spark_mode == "complete":
                settings |= complete_settings(spark)  # else Spark may drop a limit over the result
        elif len(stage.hosts) > 1:
            settings |= CHAINED_SETTINGS  # Spark refuses one operator after another
        if parting_of(*stage.ends) is not None:
            settings |= PARTING_SETTINGS
        # Spark copies the settings while the query starts.
        with _STARTING, set_for_a_while(spark, settings):
            # Within the settings: the checkpoint records them, and Spark prefers recorded ones to the session's.
            self._seed()
            frame = self._frames.streaming()
            writer = frame.writeStream.foreachBatch(self.run_batch).queryName(stage.name)
            # The mode of a single operator has to be the query's: Spark compares them.
            mode = stage.spark_mode or (modes.pop() if len(modes) == 1 else "append")
            writer = writer.outputMode(mode).trigger(processingTime=f"{stage.trigger_ms} milliseconds")
            return writer.option("checkpointLocation", stage.checkpoint_uri).start()

    def _seed(self) -> None:
        stage, order = self._stage, self._order
        location = Location(stage.checkpoint_uri)
        seed_checkpoint(self._spark, location, order, stage.cursors, stage.shuffle_partitions, stage.spark_state)

    @property
    def _first(self) -> int:
        """Number of the query's first batch."""
        last = None if self._stage.spark_state is None else self._stage.spark_state.last_batch
        return 0 if last is None else last + 1

    # -- one batch ----------------------------------------------------------------------------------------------------

    def run_batch(self, frame: DataFrame, batch: int) -> None:
        """Run one micro-batch, on Spark's thread. Raises what fails it, or `Interrupted` after the incarnation's end."""
        # Step 3 of docs/design/epoch-in-nine-steps.md.
        started_s = time.monotonic()
        try:
            # Sources rest for one batch at a time: the limits hold for the next planning, so the ones before come back here.
            if self._execution is not None:
                self._execution.wake()
            if self._stage.inputs is not None:
                self._stage.inputs.batch_begins(batch)
            if self._late is not None:
                # Rows are late by the watermark of the batch before, as in Spark; a task cannot ask Spark for it.
                self._late.begin(self._offsets(batch).watermark_ms)
            # A fresh Spark checkpoint has no event times; with several inputs the minimum needs all of them.
            if batch == self._first and len(self._stage.marks) > 1:
                self._running.seed_clocks(self._stage.newest_ms)
            began_ms = time.time() * 1000
            self._frames.run(frame)
            # Read before Spark plans again: the metrics are those of its last execution.
            rows = dict(zip(self._order.numbers, self._running.rows_delivered(self._order.numbers), strict=True))
            reports = [*self._reports.drain(), *self._seen(began_ms, sum(rows.values()))]
            self._admit(rows, _since_ms(started_s))
            self._put_on_edges(reports)
        except Exception as error:
            if self._is_over():
                # A stop cancels the batch's tasks, and their errors are no failure.
                raise Interrupted from None
            self.failure = failure_by(error)
            raise
        # A late batch of an ended incarnation must not reach the rules: its files belong to no epoch.
        if not self._is_over():
            self._on_batch(self._offsets(batch), reports, _since_ms(started_s))

    def _admit(self, rows: Mapping[int, int], took_ms: int) -> None:
        # Before sources pause: a new limit would include them again.
        sources = self._order.sources
        of_sources = {each.name: rows[number] for number, each in enumerate(sources) if each and number in rows}
        limits = self._stage.admission.after_batch(of_sources, took_ms)
        if limits:
            numbers = {number: each.name for number, each in enumerate(sources) if each and each.name in limits}
            self._running.limit_rows({number: limits[name] for number, name in numbers.items()})

    def _put_on_edges(self, reports: Sequence[Report]) -> None:
        """Hand the batch's segments to Spark's next batch; pause the sources in it if an edge is over its limit."""
        produced, edges = segments_in(reports), self._stage.edges
        for name, edge in edges.items():
            edge.put(produced.get(name, ()))
        # The edge empties first. Rows that are read meanwhile would only make it longer.
        if self._stage.bound.full({name: edge.rows for name, edge in edges.items()}):
            self._running.rest(number for number, source in enumerate(self._order.sources) if source is not None)

    def end_resting(self) -> None:
        """Stop the paused sources, after the query's end."""
        if self._execution is not None:
            self._execution.end_resting()

    def _seen(self, began_ms: float, rows: int) -> Iterator[Report]:
        """Report begin and end of the batch's action, its rows, and Spark's newest event times."""
        action: dict[str, Json] = {"began_ms": began_ms, "ended_ms": time.time() * 1000}
        yield Report("input", 0, 0, SOURCES, action | {"rows_in": rows})
        if marks := self._stage.marks:
            newest = self._running.newest_event_times()
            yield event_times({(marks[number].operator, marks[number].input): ms for number, ms in newest.items()})

    @property
    def _running(self) -> Execution:
        if self._execution is None:
            self._execution = Execution.of(self._spark, self._stage.name)
        return self._execution

    def _offsets(self, batch: int) -> BatchOffsets:
        return read_batch_offsets(Location(self._stage.checkpoint_uri), batch, self._order)


def _since_ms(began_s: float) -> int:
    return round((time.monotonic() - began_s) * 1000)


def _late_watermark(spark: SparkSession, stage: StageDescription) -> LateWatermark | None:
    if not stage.marks:
        return None
    host = stage.hosts[stage.marks[0].operator]
    return LateWatermark(spark.sparkContext, host.base_late_ms, host.base_watermark_ms)


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """The part of Spark's query that an incarnation uses."""

    _query: StreamingQuery
    _stage: StageQuery

    @property
    def isActive(self) -> bool:
        """True while the query runs."""
        return bool(self._query.isActive)

    def phases(self, batch: int) -> Phases | None:
        """Return the phases of a batch; None if Spark has not finished it, or has forgotten it."""
        newest = self._query.lastProgress
        if newest is None or newest["batchId"] < batch:  # the older records cannot have it either
            return None
        return phases_in([newest], batch) or phases_in(self._query.recentProgress, batch)

    def stop(self) -> None:
        """Stop the query."""
        self._query.stop()
        self._stage.end_resting()

    def exception(self) -> Exception | None:
        """Return the error of a dead query: ours if a batch failed, else Spark's; None otherwise."""
        return self._stage.failure or self._query.exception()


def stop_within(query: RunningQuery, bound_s: float) -> None:
    """Stop the query. A batch that cannot be interrupted is left after `bound_s`: no epoch will name its files."""
    # On a thread: `StreamingQuery.stop` waits for the batch, and user code in it may never return.
    stop = threading.Thread(target=_stop, args=(query,), name="ckpt-stop-query", daemon=True)
    stop.start()
    stop.join(bound_s)
    if stop.is_alive():
        _log.warning("the query does not stop within %g s; its thread is abandoned", bound_s)


def _stop(query: RunningQuery) -> None:
    try:
        query.stop()
    except Exception as error:  # noqa: BLE001 - Spark's own bound is over, or its Java process is gone
        _log.warning("the query was not stopped: %s", str(error).split("\n", 1)[0])


def query_settings(checkpoint_uri: str, shuffle_partitions: int) -> dict[str, str]:
    """Return the settings that the query copies from its session; a disposable checkpoint costs as little as
    possible.
    """
    partitions = {PARTITIONS: str(shuffle_partitions)}
    return _QUERY_CONF | partitions | ({} if Location(checkpoint_uri).local is None else _LOCAL_FILES)


def _with_sparks_state(spark: SparkSession, stage: StageDescription) -> dict[str, str]:
    """Return the settings of a query with Spark's own stateful operators, in addition to `query_settings`."""
    settings = dict(stage.spark_state.settings) if stage.spark_state is not None else {}
    settings |= UNCHECKED_SETTINGS if stage.hosts else frame_limits(spark)
    if keeps_state_in_rocksdb(settings):
        settings |= _CHECKED_FILES
    return settings


def make_folders(checkpoint_uri: str) -> None:
    """Empty the folder of a checkpoint, and remove those of ended incarnations. Create the folders of a local one before
    Spark does: Spark starts a `chmod` process of 10 ms for each. Raises a `StoreOutage` if the file system refuses.
    """
    checkpoint = Location(checkpoint_uri)
    local = checkpoint.local
    with typed_errors_at(checkpoint_uri):
        # A store from a backup gives numbers of incarnations again, and Spark would continue from the offsets that the first one
        # left, not from the epoch.
        if local is None:
            checkpoint.delete([info.path for info in checkpoint.list()])
        else:
            if local.exists():
                shutil.rmtree(local)
            for folder in CHECKPOINT_FOLDERS:
                (local / folder).mkdir(parents=True, exist_ok=True)
    # State of Spark's own operators is many files, and a takeover must not wait until they are deleted.
    threading.Thread(target=_remove_older, args=(checkpoint.uri.split("/")[:-1],), name=_REMOVING, daemon=True).start()


def _remove_older(own: Sequence[str]) -> None:
    """Remove the checkpoints of incarnations before the previous one, which may still be ending its query."""
    # Retention does it in a store, but not in `run_dir`.
    runs, number = Location("/".join(own[:-1])), own[-1]
    with suppress(StoreOutage, FileNotFoundError):  # the next start removes them
        for left in folders(runs) if number.isdecimal() else ():
            if left.isdecimal() and int(left) < int(number) - 1:
                delete_folder(runs, left)
