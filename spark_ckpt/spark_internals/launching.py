"""PySpark's launch of its JVM, and its signal handling. On the driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import java_gateway

from spark_ckpt.spark_internals.names import SparkName

NAMES = (
    SparkName(
        "java_gateway.Popen", "pyspark.java_gateway.launch_gateway (python/pyspark/java_gateway.py)", "launches_run_first",
        "SIGTERM to the process group ends Java before the final epoch is taken, and each Python process compiles PySpark",
    ),
    SparkName(
        "pyspark.zip before other packages", "PythonUtils.sparkPythonPath (core/.../api/python/PythonUtils.scala)",
        "launches_run_first", "each Python process of Spark compiles PySpark: 0.7 s of CPU",
    ),
    SparkName(
        "PYSPARK_GATEWAY_PORT", "pyspark.java_gateway.launch_gateway (python/pyspark/java_gateway.py)",
        "is_under_spark_submit", "`spark_ckpt.session` overrules the master that `spark-submit` was given",
    ),
    SparkName(
        "SparkContext's signal handler", "pyspark.core.context.SparkContext._do_init (python/pyspark/core/context.py)",
        "is_pysparks_handler", "after Ctrl-C a job's final epoch is taken, and the program continues",
    ),
)  # fmt: skip

_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"


PYTHON_START = str(Path(__file__).with_name("python_start"))
"""Folder of the first module of Spark's Python processes. They have the `PYTHONPATH` of their JVM."""


@contextmanager
def launches_run_first(before_exec: Callable[[], None]) -> Iterator[None]:
    """Run `before_exec` in the child of every JVM that PySpark launches in this block, between fork and exec.

    The JVM gets `PYTHON_START` in its `PYTHONPATH`.
    """
    launcher: Any = java_gateway
    popen = launcher.Popen

    def launch(command: object, env: Mapping[str, str] | None = None, **options: object) -> object:
        environment = os.environ if env is None else env
        # First on the path: Python imports `sitecustomize` before anything else, and the first one wins.
        places = [PYTHON_START, *filter(None, [environment.get("PYTHONPATH")])]
        environment = {**environment, "PYTHONPATH": os.pathsep.join(places)}
        # In place of PySpark's own function, by which Java ignores SIGINT only.
        return popen(command, env=environment, **options | {"preexec_fn": before_exec})

    launcher.Popen = launch
    try:
        yield
    finally:
        launcher.Popen = popen


def is_under_spark_submit() -> bool:
    """Return True if the JVM existed first and started this program."""
    return _GATEWAY_PORT in os.environ


def is_pysparks_handler(handler: object) -> bool:
    """Return True if a signal's handler is PySpark's, which cancels all jobs."""
    # By its module: it is a function within a method, which cannot be imported.
    return str(getattr(handler, "__module__", "")).startswith("pyspark.")
