"""Every name that Spark does not promise, looked up in the installed Spark: the first tests to fail after a change of Spark.

One check per name that `spark_ckpt.spark_internals` lists; a failure names the function that uses it, and its consequence.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from py4j.protocol import Py4JError
from pyspark import java_gateway
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.connect.streaming import readwriter as connect_writers
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import LongType, StringType, StructType

from integration_tests.spark_private.checks import CHECKS, entry, of
from integration_tests.spark_private.file_checks import offsets_of
from integration_tests.spark_private.plan_checks import ROW
from integration_tests.spark_private.watched_query import (
    ADDED,
    CLOCK,
    LATEST_MS,
    Seen,
)
from spark_ckpt.plan.onward_plan import pandas_options
from spark_ckpt.spark_internals import (
    running_query,
    settings,
)
from spark_ckpt.spark_internals.aggregate_columns import AggregateCall, aggregate_call
from spark_ckpt.spark_internals.arrow_types import arrow_schema_of, spark_schema_of
from spark_ckpt.spark_internals.batch_action import Interrupted
from spark_ckpt.spark_internals.captured_errors import causes_of, message_of, without_plan
from spark_ckpt.spark_internals.jvm import (
    activate,
    frame_of,
    is_a,
    items_of,
    java_frame,
    java_session,
    jvm_of,
    kind_of,
    scala_object,
    seq,
)
from spark_ckpt.spark_internals.key_state import NO_TIMESTAMP, KeyState, key_states
from spark_ckpt.spark_internals.launching import is_pysparks_handler
from spark_ckpt.spark_internals.library_files import is_sparks_file
from spark_ckpt.spark_internals.memory_stream import MemoryStream, rows_up_to
from spark_ckpt.spark_internals.names import SparkName
from spark_ckpt.spark_internals.pandas_conversion import columns_to_pandas, frame_to_arrow
from spark_ckpt.spark_internals.parquet_files import read_parquet
from spark_ckpt.spark_internals.python_workers import IMPORTED_BY_WORKERS, START_TIMED_OUT, workers_python
from spark_ckpt.spark_internals.shipping import shipped
from spark_ckpt.spark_internals.time_zones import session_zone
from spark_ckpt.spark_internals.writers import checkpoint_of, dataframe_of, function_of, output_mode_of, runs_remotely
from tests.spark_private_guard import PUBLIC_SETTINGS, every_name

pytestmark = pytest.mark.spark

PANDAS, PYTHON_UDF = "spark.sql.execution.pandas", "spark.sql.execution.pythonUDF"


@pytest.mark.parametrize("name", every_name(), ids=lambda name: name.name)
def test_spark_has(name: SparkName, request: pytest.FixtureRequest) -> None:
    check = CHECKS[name.name]
    try:
        check(**{wanted: request.getfixturevalue(wanted) for wanted in inspect.signature(check).parameters})
    except BaseException as error:
        error.add_note(f"{name.name}, seen in Spark {name.seen_in}: {name.lives_in}")
        error.add_note(f"{name.used_by} uses it; without it {name.breaks}")
        raise


def test_every_check_is_of_a_listed_name() -> None:
    assert set(CHECKS) == {name.name for name in every_name()}


@pytest.mark.parametrize("key", sorted(PUBLIC_SETTINGS))
def test_spark_documents_the_setting(key: str, spark: SparkSession) -> None:
    if not key.startswith("spark.sql.catalog."):  # its last part is the catalog's name
        assert entry(spark, key).isPublic()


# -- jvm ------------------------------------------------------------------------------------------------------------------


@of("SparkContext._jvm")
def _(spark: SparkSession) -> None:
    assert jvm_of(spark).java.lang.Integer.parseInt("7") == 7


@of("SparkContext._gateway")
def _(spark: SparkSession) -> None:
    assert is_a(spark, java_session(spark), "org.apache.spark.sql.classic.SparkSession")
    gateway = spark.sparkContext._gateway
    assert callable(gateway.shutdown)
    assert gateway.proc.poll() is None
    assert gateway.proc.stdin.writable()


@of("SparkSession._jsparkSession")
def _(spark: SparkSession) -> None:
    assert kind_of(java_session(spark)) == "SparkSession"


@of("SparkSession.setActiveSession")
def _(spark: SparkSession) -> None:
    other = spark.newSession()
    try:
        activate(other)
        active = jvm_of(spark).org.apache.spark.sql.classic.SparkSession.getActiveSession().get()
        assert active.equals(java_session(other))
    finally:
        activate(spark)


@of("DataFrame._jdf", "classic.dataframe.DataFrame")
def _(spark: SparkSession) -> None:
    assert frame_of(java_frame(spark.range(3)), spark).count() == 3


@of("PythonUtils.toSeq")
def _(spark: SparkSession) -> None:
    assert items_of(seq(spark, ["a", "b"])) == ["a", "b"]


# -- aggregate_columns ----------------------------------------------------------------------------------------------------


@of("Column._jc", "UnresolvedFunction.arguments", "UnresolvedAttribute.nameParts")
def _(spark: SparkSession) -> None:
    assert aggregate_call(F.sum("v")) == AggregateCall("sum", ("v",))
    assert aggregate_call(F.count("*")) in (AggregateCall("count", ()), AggregateCall("count", (), (1,)))
    assert aggregate_call(F.count_distinct("v")).distinct
    assert aggregate_call(F.sum(F.col("v") + 1)).columns is None
    assert aggregate_call(F.col("v")) is None


@of("Alias.name")
def _(spark: SparkSession) -> None:
    assert aggregate_call(F.avg("v").alias("mean")) == AggregateCall("avg", ("v",), alias="mean")


@of("Literal.value")
def _(spark: SparkSession) -> None:
    assert aggregate_call(F.last("v", ignorenulls=True)).literals == (True,)


# -- launching ------------------------------------------------------------------------------------------------------------


@of("java_gateway.Popen")
def _(spark: SparkSession, launch_mark: Path) -> None:
    assert launch_mark.exists()


@of("pyspark.zip before other packages")
def _(spark: SparkSession) -> None:
    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            first = os.environ["PYTHONPATH"].split(os.pathsep)[0]
            yield pa.RecordBatch.from_pydict({"first": [first], "used": [pyspark.__file__]})

    [row] = spark.range(1).mapInArrow(found, "first string, used string").collect()
    assert row["first"].endswith("/pyspark.zip")
    assert row["used"] == pyspark.__file__


@of("PYSPARK_GATEWAY_PORT")
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("PYSPARK_GATEWAY_SECRET", "none")
    monkeypatch.setattr(java_gateway, "Popen", lambda *_, **__: pytest.fail("a JVM is launched"))
    with pytest.raises((Py4JError, OSError)):  # no server listens there
        java_gateway.launch_gateway()


@of("SparkContext's signal handler")
def _(spark: SparkSession) -> None:
    assert is_pysparks_handler(signal.getsignal(signal.SIGINT))


# -- python_workers -------------------------------------------------------------------------------------------------------


@of("spark.python.daemon.module", "pyspark.daemon.manager", "pyspark.worker")
def _(loaded: list[str]) -> None:
    assert {"spark_ckpt.store.location", "pyspark.worker"} <= set(loaded)


@of(
    "Python worker failed to connect back", "Timed out while waiting for the Python worker to connect back",
    "Python daemon failed to launch worker", "Python failed to launch worker",
)  # fmt: skip
def _() -> None:
    with zipfile.ZipFile(next(jars_of_spark().glob("spark-core_*.jar"))) as jar:
        factory = jar.read("org/apache/spark/api/python/PythonWorkerFactory.class")
    for said in (
        b"Python worker failed to connect back", b"Timed out while waiting for the Python worker to connect back",
        b"Python daemon failed to launch worker", b"Python failed to launch worker",
    ):  # fmt: skip
        assert said in factory


@of("STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE")
def _() -> None:
    with zipfile.ZipFile(next(jars_of_spark().glob("spark-common-utils_*.jar"))) as jar:
        assert START_TIMED_OUT in json.loads(jar.read("error/error-conditions.json"))


def jars_of_spark() -> Path:
    return Path(pyspark.__file__).parent / "jars"


@of("pyspark.daemon.traceback")
def _() -> None:
    source = inspect.getsource(importlib.import_module("pyspark.daemon").manager)
    forked = source[source.index("if pid == 0:") :]
    assert forked.index("write_int(os.getpid(), outfile)") < forked.index("code = worker(")
    assert (
        forked.index("code = worker(") < forked.index("except BaseException:\n") < forked.index("traceback.print_exc()")
    )


@of("daemon failed to flush")
def _() -> None:
    source = inspect.getsource(importlib.import_module("pyspark.daemon").worker)
    assert "print(" in source and "traceback.format_exc()" in source


@of("pyspark.sql.streaming.python_streaming_source_runner")
def _() -> None:
    main = inspect.getsource(importlib.import_module("pyspark.sql.streaming.python_streaming_source_runner").main)
    assert main.index("read_int(infile)") < main.index("finally:") < main.index("reader.stop()")
    assert main.index("reader.stop()") < main.index("handle_worker_exception(e, outfile)")


@of("pyspark.sql.pandas.serializers")
def _() -> None:
    for module in IMPORTED_BY_WORKERS:
        importlib.import_module(module)


@of("SparkContext.pythonExec")
def _(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sys").executable).collect()
    assert workers_python(spark) == found[0]


@of("spark.python.unix.domain.socket.dir")
def _(loaded: list[str], socket_folder: Path) -> None:
    assert loaded, "a worker has run"
    assert [each for each in socket_folder.iterdir() if each.is_socket()]


# -- memory_stream --------------------------------------------------------------------------------------------------------


@of("MemoryStream.apply", "MemoryStream.toDF")
def _(spark: SparkSession) -> None:
    assert MemoryStream(spark).frame.isStreaming


@of("MemoryStream.addData")
def _(seen: Seen) -> None:
    assert seen.values.count(None) == ADDED


@of("MemoryStream's offset")
def _(seen: Seen) -> None:
    assert rows_up_to(offsets_of(seen).lines[1]) == ADDED


# -- running_query --------------------------------------------------------------------------------------------------------


@of("StreamingQuery._jsq", "StreamingQueryWrapper.streamingQuery")
def _(seen: Seen) -> None:
    assert kind_of(seen.java) == "MicroBatchExecution"


@of("StreamExecution.sources")
def _(seen: Seen) -> None:
    assert [kind_of(source) for source in items_of(seen.java.sources())] == [
        "RateStreamMicroBatchStream",
        "MemoryStream",
    ]


@of("StreamExecution.lastExecution")
def _(seen: Seen) -> None:
    assert kind_of(seen.java.lastExecution()) == "IncrementalExecution"


@of("StreamSourceAwareSparkPlan.getStream")
def _(seen: Seen, spark: SparkSession) -> None:
    scans = running_query.scans_of(seen.plan)
    aware = [scan for scan in scans if is_a(spark, scan, running_query.OF_A_SOURCE)]
    assert [scan.getStream().isDefined() for scan in aware] == [True, True]


@of("SparkPlan.metrics numOutputRows")
def _(seen: Seen) -> None:
    assert seen.delivered == len(seen.values) - ADDED > 0


@of("TreeNode.apply", "EventTimeWatermarkExec.eventTime", "EventTimeWatermarkExec.eventTimeStats", "EventTimeStats.max")
def _(seen: Seen) -> None:
    newest_s = max(value for value in seen.values if value is not None)
    assert seen.newest_ms == {CLOCK: seen.start_ms + newest_s * 1000}


@of("EventTimeStats.count")
def _(seen: Seen) -> None:
    assert seen.at_first_ms == {}


@of("EventTimeStatsAccum.add")
def _(seen: Seen) -> None:
    assert seen.seeded_ms == {CLOCK: LATEST_MS}


@of("AdaptiveSparkPlanExec.executedPlan", "QueryStageExec.plan")
def _(spark: SparkSession) -> None:
    frame = spark.range(10).groupBy((F.col("id") % 2).alias("k")).count()
    plan = java_frame(frame).queryExecution().executedPlan()
    frame.collect()
    assert kind_of(plan) == "AdaptiveSparkPlanExec"
    assert [kind_of(leaf)[-len("QueryStageExec") :] for leaf in items_of(plan.executedPlan().collectLeaves())] == [
        "QueryStageExec"
    ]
    assert [kind_of(leaf) for leaf in running_query.scans_of(plan)] == ["RangeExec"]


@of("StreamExecution.uniqueSources")
def _(seen: Seen) -> None:
    assert seen.unique_sources == 2


@of("StreamExecution.uniqueSources_$eq", "ReadLimit.maxRows")
def _(seen: Seen) -> None:
    assert "17" in seen.limited
    assert (seen.planned_while_one_rests, seen.planned_when_awake) == (1, 2)


@of("SparkDataStream.stop")
def _(seen: Seen) -> None:
    assert seen.execution is not None
    assert seen.java is not None
    seen.execution.rest([0])
    seen.execution.end_resting()  # fails if a source has no such method
    assert seen.java.uniqueSources().size() == 1


# -- batch_action ---------------------------------------------------------------------------------------------------------


@of("LogicalRDD.rdd")
def _(seen: Seen) -> None:
    assert (seen.batch_plan, seen.batch_partitions > 0) == ("LogicalRDD", True)


@of("StreamExecution.PROXY_ERROR")
def _(spark: SparkSession) -> None:
    jvm = jvm_of(spark)
    execution = scala_object(jvm.org.apache.spark.sql.execution.streaming.runtime, "StreamExecution")
    said = [jvm.py4j.Py4JException(f"Traceback\n{error!r}: {error}") for error in (Interrupted(), ValueError("no"))]
    assert [execution.isInterruptionException(each, spark._jsc.sc()) for each in said] == [True, False]


@of("__globPaths__")
def _(spark: SparkSession, tmp_path: Path) -> None:
    odd = tmp_path / "[x]{y}*" / "a:b"
    spark.range(3).write.parquet(str(tmp_path / "rows"))
    odd.parent.mkdir()
    (tmp_path / "rows").rename(odd)
    assert read_parquet(spark, [str(odd)]).count() == 3


@of("py4j.clientserver")
def _() -> None:
    from py4j import clientserver
    from py4j import java_gateway as gateway

    assert [clientserver.logger.name, gateway.logger.name] == ["py4j.clientserver", "py4j.java_gateway"]


# -- settings -------------------------------------------------------------------------------------------------------------


@of(*settings.QUERY_SETTINGS)
def _(spark: SparkSession) -> None:
    for key, value in settings.QUERY_SETTINGS.items():
        entry(spark, key)
        assert spark.conf.get(key) == value


@of(*settings.PUBLISHING_SETTINGS)
def _(spark: SparkSession) -> None:
    for key, value in settings.PUBLISHING_SETTINGS.items():
        assert entry(spark, key).defaultValueString().lower() == value.lower()


@of(*settings.CHAINED_SETTINGS, *settings.PARTING_SETTINGS)
def _(spark: SparkSession) -> None:
    for key in settings.CHAINED_SETTINGS | settings.PARTING_SETTINGS:
        assert entry(spark, key).defaultValueString() == "true"


@of("spark.sql.optimizer.excludedRules", "EliminateLimits")
def _(spark: SparkSession) -> None:
    ((key, rule),) = settings.complete_settings(spark).items()
    entry(spark, key)
    rows = spark.range(1).limit(5)
    assert "GlobalLimit" not in plan_text(rows)
    spark.conf.set(key, rule)
    try:
        assert "GlobalLimit" in plan_text(spark.range(1).limit(5))
    finally:
        spark.conf.unset(key)


def plan_text(frame: DataFrame) -> str:
    return str(java_frame(frame).queryExecution().optimizedPlan().toString())


@of(*settings.LOCAL_CHECKPOINT_SETTINGS, "FileSystemBasedCheckpointFileManager")
def _(spark: SparkSession, tmp_path: Path) -> None:
    jvm, configuration = jvm_of(spark), java_session(spark).sessionState().newHadoopConf()
    managers = scala_object(jvm.org.apache.spark.sql.execution.streaming.checkpointing, "CheckpointFileManager")
    manager = managers.create(jvm.org.apache.hadoop.fs.Path(str(tmp_path)), configuration)
    assert [manager.getClass().getName()] == list(settings.LOCAL_CHECKPOINT_SETTINGS.values())


@of("spark.sql.execution.pandas.convertToArrowArraySafely")
def _(spark: SparkSession) -> None:
    key = "spark.sql.execution.pandas.convertToArrowArraySafely"
    assert str(settings.converts_safely(spark)).lower() == entry(spark, key).defaultValueString()


@of("spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName")
def _(spark: SparkSession) -> None:
    key = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
    assert str(settings.assigns_columns_by_name(spark)).lower() == entry(spark, key).defaultValueString()


def test_unset_settings_of_pandas_have_sparks_defaults(spark: SparkSession) -> None:
    options = pandas_options(spark)
    assert str(options.safecheck).lower() == entry(spark, f"{PANDAS}.convertToArrowArraySafely").defaultValueString()
    for key, option in (
        (f"{PYTHON_UDF}.pandas.preferIntExtensionDtype", options.prefer_int_ext_dtype),
        (f"{PYTHON_UDF}.pandas.intToDecimalCoercionEnabled", options.int_to_decimal_coercion),
    ):
        assert str(option).lower() == entry(spark, key).defaultValueString()


# -- conversions ----------------------------------------------------------------------------------------------------------


@of("getDeclaredField")
def _(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load()
    assert output_mode_of(rows.writeStream) == "append"
    assert output_mode_of(rows.writeStream.outputMode("complete")) == "complete"
    assert checkpoint_of(rows.writeStream.option("checkpointLocation", "/data/c")) == "/data/c"
    assert checkpoint_of(rows.writeStream) is None
    assert function_of(rows.writeStream.foreachBatch(lambda frame, number: None)) == "foreachBatch"
    assert function_of(rows.writeStream) is None


@of("_df")
def _(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load()
    assert dataframe_of(rows.writeStream) is rows


@of("_write_proto")
def _() -> None:
    assert "self._write_proto.output_mode" in inspect.getsource(connect_writers.DataStreamWriter.outputMode)
    assert "self._write_proto.options" in inspect.getsource(connect_writers.DataStreamWriter.option)
    assert "self._write_proto.foreach_batch" in inspect.getsource(connect_writers.DataStreamWriter.foreachBatch)


@of("is_remote")
def _() -> None:
    assert not runs_remotely()


@of("from_arrow_schema")
def _() -> None:
    arrow = arrow_schema_of(ROW)
    assert arrow.field("at").type == pa.timestamp("us", tz="UTC")
    assert spark_schema_of(arrow) == ROW


@of("ArrowBatchTransformer.to_pandas")
def _() -> None:
    [series] = columns_to_pandas(pa.table({"v": [1, None]}), timezone="UTC", prefer_int_ext_dtype=False)
    assert (series.dtype, series[0]) == ("float64", 1.0)


@of("PandasToArrowConversion.convert")
def _() -> None:
    batch = frame_to_arrow(
        pd.DataFrame({"b": ["x"], "a": [1]}),
        StructType().add("a", LongType()).add("b", StringType()),
        timezone="UTC",
        safecheck=True,
        assign_cols_by_name=True,
        int_to_decimal_coercion=False,
    )
    assert [column.to_pylist() for column in batch.columns] == [[1], ["x"]]


# -- key_state ------------------------------------------------------------------------------------------------------------


def one_state(exists: bool = True) -> KeyState:
    [state] = key_states(
        [Row(1)],
        [exists],
        state=StructType().add("v", LongType()),
        timeout="ProcessingTimeTimeout",
        timed_out=False,
        processing_ms=1000,
        watermark_ms=None,
    )
    return state


@of("GroupState.__init__")
def _() -> None:
    assert (one_state().exists, one_state().get, one_state(False).exists) == (True, (1,), False)
    assert one_state().getCurrentProcessingTimeMs() == 1000


@of("GroupState.NO_TIMESTAMP")
def _() -> None:
    assert GroupState.NO_TIMESTAMP == NO_TIMESTAMP == one_state().timeout_timestamp_ms < 0


@of("GroupState._updated", "GroupState._value")
def _() -> None:
    state = one_state()
    assert not state.updated
    state.update((2,))
    assert state.updated
    assert tuple(state.value) == (2,)


@of("GroupState._removed")
def _() -> None:
    state = one_state()
    assert not state.removed
    state.remove()
    assert state.removed


@of("GroupState._timeout_timestamp")
def _() -> None:
    state = one_state()
    state.setTimeoutDuration(500)
    assert state.timeout_timestamp_ms == 1500


# -- captured_errors ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dead(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> StreamingQueryException:
    """The error of a failed query whose plan and error contain the same text."""
    stream = MemoryStream(spark)
    stream.add("row")
    failing = stream.frame.select(F.raise_error(F.lit("of the expression")))
    query = (
        failing.writeStream.format("noop").option("checkpointLocation", str(tmp_path_factory.mktemp("dead"))).start()
    )
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination()
    return raised.value


@of("convert_exception")
def _(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="forName") as raised:
        jvm_of(spark).java.lang.Class.forName("no.such.Class")
    [first, *_] = causes_of(raised.value)
    assert isinstance(first, PySparkException)


@of("CapturedException._cause")
def _(dead: StreamingQueryException) -> None:
    conditions = [error.getCondition() for error in causes_of(dead) if isinstance(error, PySparkException)]
    assert "USER_RAISED_EXCEPTION" in conditions


@of("CapturedException._desc")
def _(dead: StreamingQueryException) -> None:
    assert "\n\tat " not in message_of(dead)


@of("=== Streaming Query ===")
def _(dead: StreamingQueryException) -> None:
    assert "=== Streaming Query ===" in message_of(dead)
    assert "Identifier" not in without_plan(message_of(dead))


# -- others ---------------------------------------------------------------------------------------------------------------


@of("DateTimeUtils.getZoneId")
def _(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "+5:30")
    try:
        assert session_zone(spark) == "+05:30"
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@of("pyspark.cloudpickle")
def _() -> None:
    assert shipped(lambda: 7)() == 7


@of("pyspark.zip")
def _() -> None:
    lib = Path(pyspark.__file__).parent / "python" / "lib"
    assert (lib / "pyspark.zip").exists()
    assert all(is_sparks_file(f"/elsewhere/{archive.name}/module.py") for archive in lib.glob("*.zip"))
    assert is_sparks_file(java_gateway.__file__)
