"""Spark for tests: a session per module, and a JVM that ends with it, because the next module may need other jars."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from pyspark import SparkContext
from pyspark.sql import SparkSession


def plain_session(zone: str = "UTC") -> Iterator[SparkSession]:
    """Two local cores, two shuffle partitions, no jars. For `yield from` in a fixture."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.sql.session.timeZone", zone).config("spark.ui.enabled", "false")
    yield from ending(builder.config("spark.ui.showConsoleProgress", "false").getOrCreate())


def ending(session: SparkSession) -> Iterator[SparkSession]:
    """A quiet session, stopped with its JVM afterwards."""
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    end_jvm()


def end_jvm() -> None:
    """End the JVM of the last session and wait for it."""
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None
