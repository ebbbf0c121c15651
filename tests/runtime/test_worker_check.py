"""A job start reports a failed warm-up of Spark's workers, if their Python cannot run the job."""

from __future__ import annotations

import itertools
import sys
import threading
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from spark_ckpt.driver.query import warm_up
from spark_ckpt.driver.query.warm_up import check_workers
from spark_ckpt.errors import EnvironmentUnfit

OTHER = "/opt/other/bin/python"


class Raised(PySparkException):
    """A Python exception of a worker, as PySpark raises it."""

    def __init__(self, message):
        super().__init__(message, errorClass=None, messageParameters=None)
        frame = '  File "/s/pyspark.zip/pyspark/worker.py", line 1, in main'
        self._desc = f"Traceback (most recent call last):\n{frame}\n    x()\n{message}\n"

    def getCondition(self):
        return "PYTHON_EXCEPTION"

    def getMessageParameters(self):
        return {"traceback": self._desc}


APPLICATIONS = (f"app-{number}" for number in itertools.count())


class Warming:
    """A session whose workers warm up, or fail with `found`; with None they never answer."""

    def __init__(self, found, python=OTHER, master="local[2]"):
        self.found, self.answers = found, threading.Event()
        self.sparkContext = SimpleNamespace(
            applicationId=next(APPLICATIONS), pythonExec=python, master=master, defaultParallelism=2
        )

    def range(self, *numbers):
        return self

    def mapInArrow(self, function, columns):
        return self

    def collect(self):
        if self.found is None:
            assert self.answers.wait(60)
        if isinstance(self.found, Exception):
            raise self.found


def session(found, **options):
    spark = Warming(found, **options)
    warm_up.warm_up(spark)
    return spark


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Raised("ModuleNotFoundError: No module named 'spark_ckpt'"), "No module named 'spark_ckpt'"),
        (
            Raised(
                "pyspark.errors.exceptions.base.PySparkImportError: [PACKAGE_NOT_INSTALLED] PyArrow must be installed"
            ),
            "PyArrow",
        ),
        (
            Raised("pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.12, not 3.11"),
            "3.12, not 3.11",
        ),
    ],
)
@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077", "yarn"])
def test_a_python_without_the_packages_or_of_another_version_is_refused(found, why, master):
    with pytest.raises(EnvironmentUnfit, match=why) as refused:
        check_workers(session(found, master=master))
    assert refused.value.context == {"python": OTHER}
    assert "PYSPARK_PYTHON" in refused.value.hint


def test_a_python_that_cannot_be_started_here_is_refused():
    with pytest.raises(EnvironmentUnfit, match="Cannot run program"):
        check_workers(session(RuntimeError('x\njava.io.IOException: Cannot run program "/opt/other/bin/python"')))


def test_retriable_failures_on_a_cluster_are_left_to_the_job(monkeypatch):
    check_workers(session(RuntimeError("executor lost"), master="spark://host:7077"))
    monkeypatch.setattr(warm_up, "PATIENCE_S", 0.01)
    silent = session(None, master="spark://host:7077")
    check_workers(silent)
    silent.answers.set()


def test_this_python_is_not_waited_for():
    check_workers(session(Raised("ModuleNotFoundError: No module named 'x'"), python=sys.executable))


def test_another_python_that_runs_our_tasks_is_accepted():
    check_workers(session(found=True))
