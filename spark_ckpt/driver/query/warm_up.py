"""Warm-up: starts Spark's Python workers while the program describes its job, so that they are ready for the first
batch.

Without it the first tasks wait for the workers' daemon and its imports. That takes 2-3 s, in which one core has
little to do. The warm-up also finds what the workers lack before a job commits anything.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet

from pyspark.sql import SparkSession

from spark_ckpt.driver.query.failures import failure_by
from spark_ckpt.errors import EnvironmentUnfit
from spark_ckpt.spark_internals.python_workers import workers_python
from spark_ckpt.spark_session.worker_python import is_this_python
from spark_ckpt.tasks.worker_process import in_prepared_worker

_log = logging.getLogger(__name__)
_warm: dict[str, Future[None]] = {}
PATIENCE_S = 120.0
_SAID = ("No module named", "Cannot run program", "must be installed", "PYTHON_VERSION_MISMATCH")
"""Phrases of Java and Python about missing parts, only for the message; they do not decide about the refusal."""


def warm_up(spark: SparkSession) -> None:
    """Run a task per core in the background, once per application."""
    application = _application(spark)
    if application not in _warm:
        _warm[application] = Future()
        threading.Thread(target=_run_tasks, args=(spark,), name="ckpt-warm-up", daemon=True).start()


def check_workers(spark: SparkSession) -> None:
    """Raise `EnvironmentUnfit` if the workers' Python cannot run this library's tasks.

    It waits for the warm-up unless the workers use this interpreter on this machine. The job handles transient
    errors.
    """
    python, local = workers_python(spark), str(spark.sparkContext.master).startswith("local")
    # This interpreter has the packages already, so a start need not wait for the first worker.
    if local and is_this_python(python):
        return
    try:
        error = _warm[_application(spark)].exception(PATIENCE_S)
    except NotYet:
        _log.warning(
            "the workers' Python (%s) did not answer within %.0f s; the job starts all the same",
            python,
            PATIENCE_S,
        )
        return
    if not isinstance(error, Exception):  # none: they answered
        return
    judged = failure_by(error)
    # On a cluster another failure may pass, and the job's own restarts judge it.
    if local or isinstance(judged, EnvironmentUnfit):
        raise EnvironmentUnfit(
            f"Spark's Python workers cannot run this job: {_reason(judged.what, str(error))}",
            python=python,
            hint="let PYSPARK_PYTHON name this program's Python, or one of the same version with the same packages installed,"
            " before the session starts; spark_ckpt.session does",
        ) from error


def _reason(judged: str, text: str) -> str:
    """Return the message of an interpreter that did not start, or else the judged error."""
    said = [line.strip() for line in text.splitlines() if any(words in line for words in _SAID)]
    return said[0] if said else judged


def _application(spark: SparkSession) -> str:
    return str(spark.sparkContext.applicationId)


def _run_tasks(spark: SparkSession) -> None:
    done = _warm[_application(spark)]
    try:
        # A task per core, so that Spark forks as many workers as the first batch needs.
        cores = spark.sparkContext.defaultParallelism
        spark.range(0, cores, 1, cores).mapInArrow(in_prepared_worker, "id long").collect()
    except Exception as error:  # noqa: BLE001 - the job meets the same error and reports it
        _log.debug("not warmed up: %s", error)
        done.set_exception(error)
    else:
        done.set_result(None)
