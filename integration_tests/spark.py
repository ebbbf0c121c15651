"""Spark for tests: a session per module, and a JVM that ends with it, because the next module may need other jars."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_ckpt import class_archive
from spark_ckpt.class_archive import DRIVER_OPTIONS
from spark_ckpt.spark_session import session as new_session

SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Up fast, on one or two processors; code that runs for a minute does not earn the optimising compiler's time."""


def plain_session(zone: str = "UTC") -> Iterator[SparkSession]:
    """Two local cores, two shuffle partitions, no jars. For `yield from` in a fixture."""
    end_jvm()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.sql.session.timeZone", zone).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    yield from ending(builder.config(DRIVER_OPTIONS, f"{SMALL_JAVA} {class_archive.options()}").getOrCreate())


def session_with(connector: str, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """As `plain_session`, but as `spark_ckpt.session` makes it, with the connector's jars."""
    end_jvm()
    settings = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false", DRIVER_OPTIONS: SMALL_JAVA}
    yield from ending(new_session(f"{connector}-tests", connector, master="local[2]", conf=settings | dict(conf or {})))


def ending(session: SparkSession) -> Iterator[SparkSession]:
    """A quiet session, stopped with its JVM afterwards."""
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    end_jvm()


def end_jvm() -> None:
    """End the JVM of the last session, if there is one, and wait for it: jars of a later session do not reach it."""
    assert SparkContext._active_spark_context is None, "a session is still in use"
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None
