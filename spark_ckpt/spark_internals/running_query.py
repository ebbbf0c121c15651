"""A running query's execution inside Spark: facts that Spark's public interface does not provide. On the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from spark_ckpt.spark_internals.event_time import EventClocks
from spark_ckpt.spark_internals.jvm import is_a, items_of, jvm_of, kind_of
from spark_ckpt.spark_internals.names import SparkName

_PACKAGE = "org.apache.spark.sql.execution"
_FOLDER = "sql/core/src/main/scala/org/apache/spark/sql/execution"
_EXECUTION = f"{_PACKAGE}.streaming.runtime.StreamExecution ({_FOLDER}/streaming/runtime/StreamExecution.scala)"
_UNCOUNTED = "a batch's input rows are not known: every batch fails"
_UNLIMITED = "the first batch of a job that is behind fails"
NAMES = (
    SparkName(
        "StreamingQuery._jsq", "pyspark.sql.streaming.query.StreamingQuery (python/pyspark/sql/streaming/query.py)",
        "Execution.of", _UNCOUNTED,
    ),
    SparkName(
        "StreamingQueryWrapper.streamingQuery",
        f"{_PACKAGE}.streaming.runtime.StreamingQueryWrapper ({_FOLDER}/streaming/runtime/StreamingQueryWrapper.scala)",
        "Execution.of", _UNCOUNTED,
    ),
    SparkName(
        "StreamExecution.sources",
        f"{_PACKAGE}.streaming.runtime.ProgressContext ({_FOLDER}/streaming/runtime/ProgressReporter.scala)",
        "Execution.rows_delivered", _UNCOUNTED,
    ),
    SparkName("StreamExecution.lastExecution", _EXECUTION, "Execution.rows_delivered", _UNCOUNTED),
    SparkName(
        "StreamSourceAwareSparkPlan.getStream",
        f"{_PACKAGE}.StreamSourceAwareSparkPlan ({_FOLDER}/StreamSourceAwareSparkPlan.scala)",
        "Execution.rows_delivered", _UNCOUNTED,
    ),
    SparkName(
        "SparkPlan.metrics numOutputRows", f"{_PACKAGE}.SparkPlan ({_FOLDER}/SparkPlan.scala)", "Execution.rows_delivered",
        "input rows are counted as none",
    ),
    SparkName(
        "AdaptiveSparkPlanExec.executedPlan",
        f"{_PACKAGE}.adaptive.AdaptiveSparkPlanExec ({_FOLDER}/adaptive/AdaptiveSparkPlanExec.scala)",
        "Execution.rows_delivered", "input rows of adaptive plans are counted as none",
    ),
    SparkName(
        "QueryStageExec.plan", f"{_PACKAGE}.adaptive.QueryStageExec ({_FOLDER}/adaptive/QueryStageExec.scala)",
        "Execution.rows_delivered", "input rows of adaptive plans are counted as none",
    ),
    SparkName("StreamExecution.uniqueSources", _EXECUTION, "Execution.limit_rows, Execution.rest", _UNLIMITED),
    SparkName("StreamExecution.uniqueSources_$eq", _EXECUTION, "Execution.limit_rows, Execution.rest", _UNLIMITED),
    SparkName(
        "SparkDataStream.stop",
        "org.apache.spark.sql.connector.read.streaming.SparkDataStream "
        "(sql/catalyst/src/main/java/org/apache/spark/sql/connector/read/streaming/SparkDataStream.java)",
        "Execution.end_resting", "a source that rests when its query ends keeps what it holds: a consumer, a process",
    ),
    SparkName(
        "ReadLimit.maxRows",
        "org.apache.spark.sql.connector.read.streaming.ReadLimit "
        "(sql/catalyst/src/main/java/org/apache/spark/sql/connector/read/streaming/ReadLimit.java)",
        "Execution.limit_rows", _UNLIMITED,
    ),
)  # fmt: skip

OF_A_SOURCE = f"{_PACKAGE}.StreamSourceAwareSparkPlan"


class Execution:
    """Execution of one query. `of` finds it while the query runs."""

    def __init__(self, spark: SparkSession, execution: JavaObject) -> None:
        self._spark = spark
        self.java = execution
        self._clocks = EventClocks()
        self._awake: JavaObject | None = None

    @classmethod
    def of(cls, spark: SparkSession, query_name: str) -> Execution:
        """Return the execution of a running query."""
        # Found by name: the first batch may run before `start` has returned the query.
        found = next(query._jsq.streamingQuery() for query in spark.streams.active if query.name == query_name)
        return cls(spark, found)

    def rows_delivered(self, sources: Iterable[int]) -> list[int]:
        """Return how many rows each of these sources gave the last batch, as Spark's own progress counts them.

        `sources` are numbers in the plan. Rows are counted as they leave a source, before the first filter, once for
        all branches that read it. Rows of static tables and of other sources are not counted.
        """
        streams = self.java.sources()
        counted = [streams.apply(number) for number in sources]
        rows = [0] * len(counted)
        for scan in scans_of(self.java.lastExecution().executedPlan()):
            stream = scan.getStream() if is_a(self._spark, scan, OF_A_SOURCE) else None
            # A static table's scan has no stream, and its rows are no input.
            if stream is not None and stream.isDefined() and stream.get() in counted:
                metric = scan.metrics().get("numOutputRows")
                at = counted.index(stream.get())
                # branches of a plan have a scan each, over the same rows
                rows[at] = max(rows[at], int(metric.get().value()) if metric.isDefined() else 0)
        return rows

    def newest_event_times(self) -> dict[int, int]:
        """Return the greatest event time of the last batch per clock (`event_time.with_clock`), in epoch milliseconds."""
        return self._clocks.newest_ms(self.java.lastExecution().executedPlan())

    def seed_clocks(self, newest_ms: Mapping[int, int]) -> None:
        """Give clocks these event times, in epoch milliseconds. Call it from the query's own thread, within a batch."""
        self._clocks.seed(self.java.lastExecution().executedPlan(), newest_ms)

    def limit_rows(self, rows_by_source: Mapping[int, int | None]) -> None:
        """Limit the rows per batch from the next planning on, by the source's number in the plan.

        None removes a source's limit. Call it from the query's own thread, between two plannings.
        """
        limits, streams = self.java.uniqueSources(), self.java.sources()
        for number, rows in rows_by_source.items():
            # A Scala map does not change: each step returns another one.
            limits = limits.updated(streams.apply(number), _read_limit(self._spark, rows))
        self._plan_with(limits)

    def rest(self, numbers: Iterable[int]) -> None:
        """Exclude these sources from batches, from the next planning until `wake`.

        They end at the last batch's position. Call it from the query's own thread, between two plannings.
        """
        limits, streams = self.java.uniqueSources(), self.java.sources()
        # the limits before the first `rest`; a second call must not overwrite them
        self._awake = self._awake or limits
        for number in numbers:
            # A source without a limit is not planned, and its end in the offset log stays that of the batch before.
            limits = limits.removed(streams.apply(number))
        self._plan_with(limits)

    def wake(self) -> None:
        """Include the excluded sources again from the next planning on. Call it from the query's own thread."""
        if self._awake is not None:
            self._plan_with(self._awake)
            self._awake = None

    def end_resting(self) -> None:
        """Stop the excluded sources after the query's end: Spark has stopped only the sources that it planned with."""
        awake, self._awake = self._awake, None
        if awake is not None:
            planned = self.java.uniqueSources()
            for stream in items_of(awake.keys().toSeq()):
                if not planned.contains(stream):
                    stream.stop()

    def _plan_with(self, limits: JavaObject) -> None:
        getattr(self.java, "uniqueSources_$eq")(limits)  # Scala's setter of a `var`


def _read_limit(spark: SparkSession, rows: int | None) -> JavaObject:
    limit = jvm_of(spark).org.apache.spark.sql.connector.read.streaming.ReadLimit
    return limit.allAvailable() if rows is None else limit.maxRows(rows)


def scans_of(plan: JavaObject) -> Iterator[JavaObject]:
    """Yield the scans of a physical plan, also of one whose stages Spark adapts while it runs."""
    for leaf in items_of(plan.collectLeaves()):
        kind = kind_of(leaf)
        if kind == "AdaptiveSparkPlanExec":
            yield from scans_of(leaf.executedPlan())
        elif kind.endswith("QueryStageExec"):
            yield from scans_of(leaf.plan())
        else:
            yield leaf
