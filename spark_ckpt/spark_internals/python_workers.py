"""Spark's Python workers: the daemon that forks them, what they import, which interpreter they are. On both sides."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    from pyspark.sql import SparkSession

_FACTORY = (
    "org.apache.spark.api.python.PythonWorkerFactory "
    "(core/src/main/scala/org/apache/spark/api/python/PythonWorkerFactory.scala)"
)
_COUNTED = "a host that is too busy to start workers counts as a failed epoch, and ends the job after some"
NAMES = (
    SparkName(
        "spark.python.daemon.module",
        "org.apache.spark.internal.config.Python (core/src/main/scala/org/apache/spark/internal/config/Python.scala)",
        "DAEMON_MODULE", "each Python worker imports pandas and pyarrow for itself: 0.5-1 s CPU each",
    ),
    SparkName(
        "pyspark.daemon.manager", "pyspark.daemon (python/pyspark/daemon.py)", "serve_workers", "no Python worker starts",
    ),
    SparkName(
        "pyspark.daemon.worker", "pyspark.daemon (python/pyspark/daemon.py)", "serve_workers", "no Python worker starts",
    ),
    SparkName(
        "pyspark.worker", "pyspark.worker (python/pyspark/worker.py)", "WORKER",
        "the daemon does not know its workers, and imports nothing for them",
    ),
    SparkName(
        "pyspark.sql.pandas.serializers",
        "pyspark.sql.pandas.serializers (python/pyspark/sql/pandas/serializers.py)", "IMPORTED_BY_WORKERS",
        "no Python worker starts",
    ),
    SparkName(
        "SparkContext.pythonExec", "pyspark.core.context.SparkContext (python/pyspark/core/context.py)", "workers_python",
        "another Python of the workers is not told at the start",
    ),
    SparkName(
        "spark.python.unix.domain.socket.dir",
        "org.apache.spark.internal.config.Python (core/src/main/scala/org/apache/spark/internal/config/Python.scala)",
        "unix_sockets", "a batch takes 40 ms longer: a small piece of it waits for TCP's acknowledgement of the one before",
    ),
    SparkName("Python worker failed to connect back", _FACTORY, "start_failure_said", _COUNTED),
    SparkName("Timed out while waiting for the Python worker to connect back", _FACTORY, "start_failure_said", _COUNTED),
    SparkName("Python daemon failed to launch worker", _FACTORY, "start_failure_said", _COUNTED),
    SparkName("Python failed to launch worker", _FACTORY, "start_failure_said", _COUNTED),
    SparkName(
        "STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE",
        "error-conditions.json (common/utils/src/main/resources/error/error-conditions.json)", "START_TIMED_OUT", _COUNTED,
    ),
)  # fmt: skip

DAEMON_MODULE = "spark.python.daemon.module"
"""Setting: the module that forks the workers."""
WORKER = "pyspark.worker"
"""What Spark asks the daemon to fork for a task of a user's function."""
_LONGEST_SOCKET_FOLDER = 61
"""Bytes. Spark refuses a longer one: its sockets' names take 43 of the 104 that a path may have."""
START_TIMED_OUT = "STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE"
"""Condition: the Python process of a streaming source has not connected in time."""
_NOT_STARTED = re.compile(
    r"(?:\A|Exception: )((?:Python worker failed to connect back|Timed out while waiting for the Python worker to connect back"
    r"|Python (?:daemon )?failed to launch worker)[^\n]*)"
    rf"|\[?({START_TIMED_OUT}[^\n]*)"
)
"""What Spark says of a worker that has not connected (within 10 or 60 seconds, for which there is no setting), or that could not
be forked. At the beginning of a message, or after the name of an exception's class: a record may hold the same words."""
IMPORTED_BY_WORKERS = (WORKER, "pyspark.sql.pandas.serializers")


def serve_workers() -> None:
    """Fork workers for Spark until it hangs up. A worker that is hung up on before ends without a traceback of its own."""
    from pyspark import daemon

    daemon.worker = silent_when_hung_up_on(daemon.worker)  # type: ignore[assignment]
    daemon.manager()


def silent_when_hung_up_on(worker: Callable[[socket, bool], int]) -> Callable[[socket, bool], int]:
    """The same, but that it ends with code 1 if Spark is gone. Spark stops a task like that, and every task when a program ends:
    the user would see a traceback of Spark's for it."""

    def silent(sock: socket, authenticated: bool) -> int:
        try:
            return worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError, EOFError):
            return 1

    return silent


def start_failure_said(text: str) -> str | None:
    """Spark's line in an error's text that says that a Python process did not start in time; None if there is none."""
    found = _NOT_STARTED.search(text)
    return None if found is None else found[1] or found[2]


def workers_python(spark: SparkSession) -> str:
    """The command of the workers' interpreter, as it is written."""
    return str(spark.sparkContext.pythonExec)


def unix_sockets(folder: str) -> dict[str, str]:
    """Settings of a session whose workers are all on the driver's host: Unix sockets in `folder` between Spark and them;
    none if its path is too long.

    Spark writes a batch to a worker in several pieces. Over TCP a small one waits up to 40 ms until the worker's side has
    acknowledged the one before (Nagle's algorithm and delayed acknowledgements).
    """
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_FOLDER:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": folder}
