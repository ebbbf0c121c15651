"""The SparkSession of a command that may need one: state of Spark's own operators has no other reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_for(command: str, conf: Mapping[str, str] | None = None) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that returns the active session, or creates one at its first call.

    `conf`: settings of a created session, which is stopped at the end. Raises `EnvironmentUnfit` without Java.
    """
    sessions = _Sessions(command, {"spark.ui.enabled": "false"} | dict(conf or {}))
    try:
        yield sessions
    finally:
        sessions.close()


class _Sessions:
    """A session, created at its first use. Stops only a session that it created."""

    def __init__(self, command: str, conf: Mapping[str, str]) -> None:
        self._command = command
        self._conf = conf
        self._own: SparkSession | None = None

    def __call__(self) -> SparkSession:
        from pyspark.sql import SparkSession  # most calls of the command need no PySpark

        from spark_ckpt.spark_session.session import session

        active = SparkSession.getActiveSession()
        if active is not None:
            return active
        self._own = session(self._command, conf=self._conf)
        self._own.sparkContext.setLogLevel("OFF")  # Spark's log would repeat an error that the command raises
        return self._own

    def close(self) -> None:
        """Stop the session if this object created it."""
        if self._own is not None:
            self._own.stop()
