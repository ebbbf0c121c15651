"""Checks of the names of plans: analysed plans, a query's output, window columns."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from integration_tests.spark_private.checks import of
from spark_ckpt.spark_internals import plans
from spark_ckpt.spark_internals.jvm import jvm_of
from spark_ckpt.spark_internals.physical_plans import times_computed
from spark_ckpt.spark_internals.window_columns import (
    WindowPart,
    is_session_window,
    is_time_window,
    is_watermarked,
    watermark_only,
    window_part,
    without_watermark_mark,
)

# -- plans ----------------------------------------------------------------------------------------------------------------

TEN_MINUTES_US = 600_000_000
ROW = StructType().add("k", StringType()).add("at", "timestamp")


@of("QueryExecution.analyzed", "LogicalPlan.children")
def _(spark: SparkSession) -> None:
    plan = plans.analysed(spark.range(3).where("id > 1"))
    assert (plan.name, [child.name for child in plan.children]) == ("Filter", ["Range"])


@of("LogicalPlan.isStreaming")
def _(spark: SparkSession) -> None:
    assert not plans.analysed(spark.range(3)).is_streaming
    assert plans.analysed(plans.streaming_template(spark, ROW)).is_streaming


@of("STATELESS_NODES")
def _(spark: SparkSession) -> None:
    loader = jvm_of(spark).org.apache.spark.util.Utils
    leaves = {plans.REFERENCE_NODE, plans.TEMPLATE_NODE, plans.JOIN_NODE}
    for name in plans.STATELESS_NODES | plans.STATEFUL_NODES.keys() | plans.EVENT_TIME_NODES | leaves:
        package = "expressions" if name == plans.PIPE_NODE else "plans.logical"
        full = f"org.apache.spark.sql.catalyst.{package}.{name}"
        assert loader.classForName(full, True, True).getSimpleName() == name


@of("QueryPlan.expressions", "QueryPlan.deterministic", "InputFileName")
def _(spark: SparkSession) -> None:
    rows = plans.streaming_template(spark, ROW)
    named = plans.analysed(rows.select(F.concat("k", F.input_file_name()), F.expr("input_file_block_start()")))
    assert (named.is_deterministic, named.file_functions) == (False, ["input_file_name", "input_file_block_start"])
    drawn = plans.analysed(rows.where(F.rand() < 1))
    assert (drawn.is_deterministic, drawn.file_functions) == (False, [])
    assert plans.analysed(rows.where("k = 'input_file_name()'")).is_deterministic


@of("DataTypeUtils.toAttributes", "LocalRelation", "Dataset.ofRows")
def _(spark: SparkSession) -> None:
    frame = plans.streaming_template(spark, ROW)
    assert frame.schema == ROW
    assert plans.analysed(frame).name == plans.TEMPLATE_NODE


@of("Project.projectList", "NamedExpression.exprId")
def _(spark: SparkSession) -> None:
    rows = plans.streaming_template(spark, ROW)
    named = rows.alias("r").select("at", F.col("r.k").alias("who")).withColumnRenamed("at", "when").drop("none")
    assert plans.columns_kept(named) == {"when": "at", "who": "k"}
    assert plans.columns_kept(rows.drop("at")) == {"k": "k"}
    for other in (
        rows.where("k > 'a'"),
        rows.select("k", F.lit(1)),
        rows.select("k", F.col("at").alias("K")),
        rows.union(rows),
    ):
        assert plans.columns_kept(other) is None


@of("UnsupportedOperationChecker.checkForStreaming")
def _(spark: SparkSession) -> None:
    template = plans.streaming_template(spark, ROW)
    for mode in ("append", "update"):
        plans.analysed(template.where("k = 'a'")).check_for_streaming(spark, mode)
    counted = plans.analysed(template.groupBy("k").count())
    counted.check_for_streaming(spark, "update")
    with pytest.raises(PySparkException):
        counted.check_for_streaming(spark, "append")


@of("QueryExecution.executedPlan", "RDDScanExec.rdd", "ReusedExchangeExec")
def _(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        rows = spark.createDataFrame(spark.sparkContext.parallelize([("a", 1)]), "k string, v long")
        shuffled = rows.repartition(2, F.spark_partition_id())
        assert times_computed(rows.union(rows), rows) == 2
        assert times_computed(shuffled.union(shuffled), rows) == 1
        pushed_down = shuffled.where("v > 1").union(shuffled.where("v < 1"))
        assert times_computed(pushed_down, rows) == 2
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")


# -- window_columns -------------------------------------------------------------------------------------------------------


@of("spark.watermarkDelayMs")
def _(spark: SparkSession) -> None:
    template = plans.streaming_template(spark, ROW)
    assert is_watermarked(template.withWatermark("at", "5 seconds").schema["at"])
    ours = watermark_only(template, "at", 5000).schema["at"]
    assert ours.metadata == template.withWatermark("at", "5 seconds").schema["at"].metadata
    assert not is_watermarked(without_watermark_mark(ours))


@of("spark.timeWindow")
def _(spark: SparkSession) -> None:
    fields = plans.streaming_template(spark, ROW).select(F.window("at", "10 minutes").alias("w"), "k").schema
    assert [is_time_window(field) for field in fields] == [True, False]


@of("spark.sessionWindow")
def _(spark: SparkSession) -> None:
    template = plans.streaming_template(spark, ROW)
    assert is_session_window(template.groupBy(F.session_window("at", "10 minutes").alias("w")).count().schema["w"])


@of("GetStructField", "AttributeReference", "CreateNamedStruct.valExprs", "Project and Alias")
def _(spark: SparkSession) -> None:
    windows = watermark_only(plans.streaming_template(spark, ROW), "at", 0).select(
        F.window("at", "10 minutes").alias("w")
    )
    parts = windows.select(F.col("w.start").alias("s"), F.col("w.end").alias("e")).select(F.col("s").alias("t"), "e")
    assert window_part(parts, "t") == WindowPart(False, TEN_MINUTES_US)
    assert window_part(parts, "e") == WindowPart(True, None)


@of("Expand.projections")
def _(spark: SparkSession) -> None:
    sliding = F.window("at", "10 minutes", "5 minutes").alias("w")
    windows = watermark_only(plans.streaming_template(spark, ROW), "at", 0).select(sliding)
    assert window_part(windows.select(F.col("w.start").alias("s")), "s") == WindowPart(False, TEN_MINUTES_US)
