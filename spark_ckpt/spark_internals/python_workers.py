"""Spark's Python workers: the daemon that forks them, their imports, their interpreter. On driver and tasks."""

from __future__ import annotations

import os
import re
import sys
import traceback
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from types import TracebackType

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
        "pyspark.daemon.traceback", "pyspark.daemon (python/pyspark/daemon.py)", "print_error_unless_hung_up_on",
        "the console shows a BrokenPipeError of each worker that Spark stops before it answers or while it reads",
    ),
    SparkName(
        "daemon failed to flush", "pyspark.daemon (python/pyspark/daemon.py)", "print_unless_hung_up_on",
        "the console shows a BrokenPipeError of each worker that Spark stops while it writes",
    ),
    SparkName(
        "pyspark.sql.streaming.python_streaming_source_runner",
        "python_streaming_source_runner (python/pyspark/sql/streaming/python_streaming_source_runner.py)", "end_reader",
        "the console shows a BrokenPipeError when a query with a source in Python ends",
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
        "another Python of the workers is not reported at the start",
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
"""Module that Spark requests from the daemon for a task of a user's function."""
_LONGEST_SOCKET_FOLDER = 61
"""Longest path in bytes. Spark refuses a longer one: its sockets' names take 43 of the 104 bytes of a path."""
START_TIMED_OUT = "STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE"
"""Condition: the Python process of a streaming source has not connected in time."""
_NOT_STARTED = re.compile(
    r"(?:\A|Exception: )((?:Python worker failed to connect back|Timed out while waiting for the Python worker to connect back"
    r"|Python (?:daemon )?failed to launch worker)[^\n]*)"
    rf"|\[?({START_TIMED_OUT}[^\n]*)"
)
"""Spark's texts for a worker that did not connect in time, or that could not be forked.

The limit is 10 or 60 seconds, and no setting changes it. The text begins a message or follows the name of an
exception's class: a record may contain the same words.
"""
_HUNG_UP = re.compile(r"^(BrokenPipeError|ConnectionResetError)\b", re.MULTILINE)
IMPORTED_BY_WORKERS = (WORKER, "pyspark.sql.pandas.serializers", "pyspark.testing")
"""`GroupState.update` imports the last one at its first call: 31 ms of CPU in each worker."""


def serve_workers() -> None:
    """Fork workers for Spark until it closes the connection.

    A worker whose connection Spark closes first ends without a traceback.
    """
    from pyspark import daemon

    # Replaced in the daemon's module only: other code of a worker prints its errors as before.
    vars(daemon)["traceback"] = SimpleNamespace(**vars(traceback) | {"print_exc": print_error_unless_hung_up_on})
    vars(daemon)["print"] = print_unless_hung_up_on
    daemon.manager()


def print_error_unless_hung_up_on() -> None:
    """Print the error that ends a worker as the daemon does, but not that of a connection that Spark has closed.

    Spark closes it to stop a task, also one whose worker has not yet answered that it was forked, and at the end of a program.
    """
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError | EOFError):
        traceback.print_exc()


def print_unless_hung_up_on(text: str, **options: Any) -> None:
    """Print as the daemon does, but not the traceback of a last write to a connection that Spark has closed."""
    if not _HUNG_UP.search(text):
        print(text, **options)


def end_reader() -> None:
    """End the process of a streaming source without a traceback if Spark has closed the connection.

    A reader calls it from `stop`, before the process reports its `EOFError` to Spark.
    """
    if isinstance(sys.exc_info()[1], EOFError):
        sys.excepthook = print_unless_closed


def print_unless_closed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught error, except that of a write to a closed connection."""
    if not issubclass(kind, BrokenPipeError | ConnectionResetError):
        sys.__excepthook__(kind, error, trace)


def start_failure_said(text: str) -> str | None:
    """Return Spark's line about a Python process that did not start, from an error's text; None without one."""
    found = _NOT_STARTED.search(text)
    return None if found is None else found[1] or found[2]


def workers_python(spark: SparkSession) -> str:
    """Return the command of the workers' interpreter, as configured."""
    return str(spark.sparkContext.pythonExec)


def unix_sockets(folder: str) -> dict[str, str]:
    """Return session settings for Unix sockets in `folder` between Spark and its workers, all on the driver's host.

    The result is empty if the folder's path is too long. Spark writes a batch to a worker in several pieces. Over TCP,
    a small piece waits up to 40 ms for the acknowledgement of the previous one (Nagle's algorithm and delayed
    acknowledgements).
    """
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_FOLDER:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": folder}
