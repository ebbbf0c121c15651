"""Conversion between PySpark's objects and Java's. On the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.java_gateway import is_instance_of

from spark_ckpt.spark_internals.java_classes import remember_classes
from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from py4j.java_gateway import JavaObject, JVMView
    from pyspark.sql import DataFrame, SparkSession

NAMES = (
    SparkName(
        "SparkContext._jvm", "pyspark.core.context.SparkContext (python/pyspark/core/context.py)", "jvm_of",
        "no class of Spark can be reached: no job starts",
    ),
    SparkName(
        "SparkContext._gateway", "pyspark.core.context.SparkContext (python/pyspark/core/context.py)", "is_a, end_jvm",
        "input rows are not counted; `spark-ckpt prepare` makes no archive",
    ),
    SparkName(
        "SparkSession._jsparkSession", "pyspark.sql.session.SparkSession (python/pyspark/sql/session.py)", "java_session",
        "no control rows, no check of operations: no job starts",
    ),
    SparkName(
        "DataFrame._jdf", "pyspark.sql.classic.dataframe.DataFrame (python/pyspark/sql/classic/dataframe.py)", "java_frame",
        "operations cannot be checked: no job starts",
    ),
    SparkName(
        "classic.dataframe.DataFrame", "pyspark.sql.classic.dataframe (python/pyspark/sql/classic/dataframe.py)", "frame_of",
        "no control rows: no job starts",
    ),
    SparkName(
        "PythonUtils.toSeq",
        "org.apache.spark.api.python.PythonUtils (core/src/main/scala/org/apache/spark/api/python/PythonUtils.scala)", "seq",
        "no control rows: no job starts",
    ),
    SparkName(
        "SparkSession.setActiveSession",
        "org.apache.spark.sql.classic.SparkSession (sql/core/src/main/scala/org/apache/spark/sql/classic/SparkSession.scala)",
        "activate", "a job in a second session can have no source of Python",
    ),
)  # fmt: skip


def jvm_of(spark: SparkSession) -> JVMView:
    """Return the driver's Java classes, by their packages."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a classic session has a JVM"  # noqa: S101 - Spark Connect is refused before
    remember_classes(jvm)
    return jvm


def java_session(spark: SparkSession) -> JavaObject:
    """Return the JVM's session of a PySpark session."""
    return spark._jsparkSession


def activate(spark: SparkSession) -> None:
    """Make the session this thread's active one, as `createDataFrame` does."""
    jvm_of(spark).org.apache.spark.sql.classic.SparkSession.setActiveSession(java_session(spark))


def java_frame(frame: DataFrame) -> JavaObject:
    """Return the JVM's `Dataset` of a PySpark `DataFrame`."""
    return frame._jdf


def frame_of(java: JavaObject, spark: SparkSession) -> DataFrame:
    """Return PySpark's `DataFrame` of a `Dataset`."""
    from pyspark.sql.classic.dataframe import DataFrame as JvmFrame

    return JvmFrame(java, spark)


def scala_object(package: Any, name: str) -> JavaObject:
    """Return the singleton of a Scala `object`."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def seq(spark: SparkSession, items: Iterable[object]) -> JavaObject:
    """Return a Scala `Seq`."""
    return jvm_of(spark).PythonUtils.toSeq(list(items))


def items_of(seq: JavaObject) -> list[JavaObject]:
    """Return the items of a Scala `Seq`."""
    return [seq.apply(number) for number in range(seq.size())]


def kind_of(thing: JavaObject) -> str:
    """Return the simple name of a Java object's class."""
    return str(thing.getClass().getSimpleName())


def is_a(spark: SparkSession, thing: JavaObject, class_name: str) -> bool:
    """Return True if a Java object is an instance of a class."""
    return bool(is_instance_of(spark.sparkContext._gateway, thing, class_name))


def end_jvm(spark: SparkSession) -> None:
    """Stop the session, let its JVM end by itself, and wait for it."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    if gateway is not None:
        gateway.shutdown()
        # PySpark's JVM ends by itself when its standard input does.
        gateway.proc.stdin.close()
        gateway.proc.wait()
