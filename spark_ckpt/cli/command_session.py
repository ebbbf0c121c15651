"""The SparkSession of a command that may need one: state of Spark's own operators has no other reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_for(command: str) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that returns the active session, or creates one at its first call.

    A created session is stopped at the end. Raises `EnvironmentUnfit` without Java.
    """
    made: list[SparkSession] = []

    def active_or_new() -> SparkSession:
        from pyspark.sql import SparkSession  # most calls of the command need no PySpark

        from spark_ckpt.spark_session.session import session

        active = SparkSession.getActiveSession()
        if active is not None:
            return active
        made.append(session(command, conf={"spark.ui.enabled": "false"}))
        made[0].sparkContext.setLogLevel("OFF")  # Spark's log would repeat an error that the command raises
        return made[0]

    try:
        yield active_or_new
    finally:
        for each in made:
            each.stop()
