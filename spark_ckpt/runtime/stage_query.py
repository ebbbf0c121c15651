"""One incarnation's streaming query: sources and control rows in, one Spark action per micro-batch, reports out.

```
sources -> user's operations [-> pack] --+
                                         +-- union [-> shuffle -> operator] -> foreachBatch: user's operations -> stage
control rows [one per key group] --------+
```
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from spark_ckpt.connector import Cursor
from spark_ckpt.errors import CkptError, GraphInvalid
from spark_ckpt.graph import REJECT, Node, OperatorNode, SourceNode, build, operator_of, sources_of, watermark_of
from spark_ckpt.host.reports import Report
from spark_ckpt.runtime.admission import lift_limits, small
from spark_ckpt.runtime.checkpoint_seed import seed_checkpoint
from spark_ckpt.runtime.control_source import Control, control_rows
from spark_ckpt.runtime.group_host import GroupHost
from spark_ckpt.runtime.late_watermark import LateWatermark
from spark_ckpt.runtime.offset_log import read_batch_offsets
from spark_ckpt.runtime.packing import packed_ddl, tables_of_blobs
from spark_ckpt.runtime.query_failures import failure_by
from spark_ckpt.runtime.rejects import Diverter, divert_rejects, diverting_with
from spark_ckpt.runtime.reports import Reports
from spark_ckpt.runtime.rows import EVENT_TIME
from spark_ckpt.runtime.stage_tasks import Tables, exploder, first_met, large_tables, packer, stager
from spark_ckpt.runtime.staging import SinkStage
from spark_ckpt.runtime.stateless_graph import checked_output, checked_rows
from spark_ckpt.spark_private.checkpoint_files import CHECKPOINT_FOLDERS
from spark_ckpt.spark_private.running_query import Execution
from spark_ckpt.spark_private.settings import LOCAL_CHECKPOINT_SETTINGS, QUERY_SETTINGS
from spark_ckpt.storage_errors import told_of
from spark_ckpt.store.location import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_QUERY_CONF = QUERY_SETTINGS | {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.ui.explainMode": "simple",
}
_LOCAL_FILES = LOCAL_CHECKPOINT_SETTINGS | {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""For local checkpoints. Spark's own choice starts a `readlink` process per file operation, Hadoop's a `chmod` per file and
one for the file's checksum, eight per batch. The checkpoint is disposable and needs no checksums. Not from Hadoop's cache:
there is the rest of the program's file system."""


@dataclass(frozen=True, slots=True)
class StageDescription:
    """What an incarnation's query is built from. `cursors`: where every source starts. `behind`: rows wait there, so that
    the first batch is kept small."""

    name: str
    node: Node
    cursors: Mapping[str, Cursor]
    stages: Sequence[SinkStage]
    rejected_stage: SinkStage | None
    host: GroupHost | None
    control: Control
    checkpoint_uri: str
    shuffle_partitions: int
    trigger_ms: int
    behind: bool


class StageQuery:
    """Builds and starts the query; `on_batch(batch id, reports, ms)` is called after each batch's action, on Spark's thread.

    `is_over`: whether the incarnation has ended, so that nobody waits for the batch that is running.
    """

    def __init__(
        self,
        spark: SparkSession,
        stage: StageDescription,
        on_batch: Callable[[int, list[Report], int], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._spark = spark
        self._stage = stage
        self._on_batch = on_batch
        self._is_over = is_over
        self._reports = Reports(spark.sparkContext)
        self._late = _late_watermark(spark, stage)
        self._execution: Execution | None = None
        self._steps = 0
        self.failure: CkptError | None = None
        """What the batch that ended the query failed with, judged where Spark's error is whole: to Java it is a text."""

    def start(self) -> RunningQuery:
        """Start streaming from the description's cursors. Raises `GraphInvalid` for operations that cannot stream."""
        try:
            return RunningQuery(self._started(), self)
        except AnalysisException as error:
            what = str(error).split("\n", 1)[0]
            raise GraphInvalid(f"Spark cannot run the stream: {what}", hint="use stateless operations") from error

    def _started(self) -> StreamingQuery:
        spark = self._spark
        make_folders(self._stage.checkpoint_uri)
        with _session_conf(spark, query_settings(self._stage.checkpoint_uri, self._stage.shuffle_partitions)):
            self._seed()
            frame = diverting_with(self._diverter, self._plan)
            writer = frame.writeStream.foreachBatch(self._run_batch).queryName(self._stage.name)
            mode = self._stage.host.output_mode if self._stage.host else "append"
            writer = writer.outputMode(mode).trigger(processingTime=f"{self._stage.trigger_ms} milliseconds")
            return writer.option("checkpointLocation", self._stage.checkpoint_uri).start()

    def _seed(self) -> None:
        stage = self._stage
        places = [(node.source, stage.cursors[node.name]) for node in sources_of(stage.node)]
        seed_checkpoint(self._spark, Location(stage.checkpoint_uri), places, stage.shuffle_partitions)

    # -- the plan -----------------------------------------------------------------------------------------------------

    def _plan(self) -> DataFrame:
        operator = operator_of(self._stage.node)
        if operator is None:
            rows = checked_rows(self._stage.node, self._read)
            return rows.union(self._no_rows(rows))
        if operator is not self._stage.node:
            checked_output(self._spark, self._stage.node)
        return self._operator_plan(operator)

    def _read(self, node: SourceNode | OperatorNode) -> DataFrame:
        if isinstance(node, OperatorNode):
            raise TypeError("an operator's output is read inside foreachBatch")
        source = small(node.source) if self._stage.behind else node.source
        return source.read(self._spark, self._stage.cursors[node.name])

    def _operator_plan(self, operator: OperatorNode) -> DataFrame:
        host = self._stage.host
        if host is None:
            raise TypeError("a stage with an operator needs a host for its key groups")
        rows = checked_rows(operator.parent, self._read)
        watermark = watermark_of(operator.parent)
        timed = watermark is not None
        diverter = self._diverter() if REJECT in rows.columns else None
        step = packer(diverter, host.key_groups, watermark.column if watermark else None)
        packed = host.keyed(rows).mapInArrow(step, packed_ddl(timed)).union(host.control(self._control(), timed))
        if watermark is not None:
            packed = packed.withWatermark(EVENT_TIME, f"{watermark.delay_ms} milliseconds")
        return host.apply(packed, self._reports)

    def _control(self) -> DataFrame:
        return control_rows(self._spark, self._stage.control)

    def _no_rows(self, rows: DataFrame) -> DataFrame:
        """Without an operator nobody has to see a marker, but Spark must count it, so the control source is in the plan. The
        condition lets Spark leave it out of every batch's: no task, no column."""
        nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
        return self._control().where(F.lit(False)).select(*nulls)

    def _diverter(self) -> Diverter:
        self._steps += 1
        return Diverter(self._reports, self._stage.rejected_stage, self._steps)

    # -- one batch ----------------------------------------------------------------------------------------------------

    def _run_batch(self, frame: DataFrame, batch: int) -> None:
        started_s = time.monotonic()
        try:
            if batch == 0 and self._stage.behind:
                lift_limits(self._spark, self._stage.name, [each.source for each in sources_of(self._stage.node)])
            if self._late is not None:
                self._late.begin(read_batch_offsets(Location(self._stage.checkpoint_uri), batch).watermark_ms)
            self._staged(frame, batch).collect()
            delivered = self._rows_delivered()
        except Exception as error:
            # Spark interrupts the batch that a stop finds running. It would search the error's text with a pattern that
            # overflows its thread's stack.
            if self._is_over():
                return
            self.failure = failure_by(error)
            raise
        reports = [*self._reports.drain(), Report("input", 0, 0, "sources", {"rows_in": delivered})]
        self._on_batch(batch, reports, round((time.monotonic() - started_s) * 1000))

    def _rows_delivered(self) -> int:
        if self._execution is None:
            self._execution = Execution.of(self._spark, self._stage.name)
        return self._execution.rows_delivered(len(sources_of(self._stage.node)))

    def _staged(self, frame: DataFrame, batch: int) -> DataFrame:
        node, stages, reports = self._stage.node, self._stage.stages, self._reports
        operator = operator_of(node)
        if operator is None:
            tables: Tables = first_met(self._diverter() if REJECT in frame.columns else None)
        elif node is operator:
            tables = tables_of_blobs
        else:
            output = operator.operator.output
            exploded = frame.mapInArrow(exploder(output), output)
            frame = diverting_with(self._diverter, lambda: divert_rejects(build(node, lambda _: exploded)))
            tables = large_tables
        return frame.mapInArrow(stager(tables, stages, batch, reports), "staged long")


def _late_watermark(spark: SparkSession, stage: StageDescription) -> LateWatermark | None:
    host = stage.host
    if host is None or watermark_of(stage.node) is None:
        return None
    return LateWatermark(spark.sparkContext, host.base_late_ms, host.base_watermark_ms)


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """Spark's query, as far as a life looks at it."""

    _query: StreamingQuery
    _stage: StageQuery

    @property
    def isActive(self) -> bool:
        """Whether it still runs."""
        return bool(self._query.isActive)

    def stop(self) -> None:
        """End it."""
        self._query.stop()

    def exception(self) -> Exception | None:
        """What it died of, if it is dead: our error if that happened in a batch, else Spark's."""
        return self._stage.failure or self._query.exception()


def stop_within(query: RunningQuery, bound_s: float) -> None:
    """Stop the query. A batch that does not let itself be interrupted is left behind after `bound_s`: no epoch will name what
    it writes."""
    stop = threading.Thread(target=_stop, args=(query,), name="ckpt-stop-query", daemon=True)
    stop.start()
    stop.join(bound_s)
    if stop.is_alive():
        _log.warning("the query does not stop within %g s; it is left behind", bound_s)


def _stop(query: RunningQuery) -> None:
    try:
        query.stop()
    except Exception as error:  # noqa: BLE001 - Spark's own bound is over, or its Java process is gone
        _log.warning("the query was not stopped: %s", str(error).split("\n", 1)[0])


def query_settings(checkpoint_uri: str, shuffle_partitions: int) -> dict[str, str]:
    """What the query copies from its session: no time on what a disposable checkpoint does not need."""
    partitions = {"spark.sql.shuffle.partitions": str(shuffle_partitions)}
    return _QUERY_CONF | partitions | ({} if Location(checkpoint_uri).local is None else _LOCAL_FILES)


def make_folders(checkpoint_uri: str) -> None:
    """Make the folders of a local checkpoint before Spark does: each would be a `chmod` process, 10 ms at that time. Raises a
    `StoreOutage` if the file system refuses."""
    local = Location(checkpoint_uri).local
    if local is not None:
        with told_of(checkpoint_uri):
            for folder in CHECKPOINT_FOLDERS:
                (local / folder).mkdir(parents=True, exist_ok=True)


@contextmanager
def _session_conf(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings that the query copies when it starts; the user's session gets its own back."""
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
