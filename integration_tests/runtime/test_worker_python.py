"""A session whose Python workers use another interpreter is refused before the job has written anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import spark_ckpt as ckpt
from spark_ckpt_files import FilesSource
from spark_ckpt_delta import DeltaSink
folder = sys.argv[1]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for each in sys.argv[2:]:
    builder = builder.config(*each.split("="))
spark = builder.getOrCreate()
try:
    job = ckpt.Job(spark, "job", folder + "/store", key_groups=1)
    job.source("in", FilesSource(folder + "/in", "json", "k string")).to(DeltaSink(folder + "/out"), name="out")
    job.start(availableNow=True).awaitTermination()
    print("ENDED")
except ckpt.CkptError as error:
    print("REFUSED", error)
"""


def answer(folder: Path, python: str, *conf: str) -> str:
    """Output of a program whose workers are `python`."""
    (folder / "in").mkdir()
    program = [sys.executable, "-c", PROGRAM, str(folder), *conf]
    run = subprocess.run(
        program, capture_output=True, text=True, timeout=300, env=os.environ | {"PYSPARK_PYTHON": python}, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


def other_version() -> str | None:
    """Another Python 3 of this machine."""
    names = (f"python3.{minor}" for minor in range(10, 15) if minor != sys.version_info.minor)
    return next(filter(None, map(shutil.which, names)), None)


def assert_refused(said: str, folder: Path, python: str) -> None:
    assert "REFUSED [CKPT_ENVIRONMENT_UNFIT] Spark's Python workers" in said
    assert f"python: {python}" in said
    assert "PYSPARK_PYTHON" in said
    assert not (folder / "store").exists()


@pytest.mark.parametrize("conf", [[], ["spark.python.daemon.module=spark_ckpt.tasks.python_daemon"]])
@pytest.mark.long
def test_workers_without_the_packages_are_refused_at_the_start(tmp_path: Path, conf: list[str]) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    assert_refused(answer(tmp_path, python, *conf), tmp_path, python)


@pytest.mark.long
def test_workers_of_another_version_are_refused_at_the_start(tmp_path: Path) -> None:
    python = other_version()
    if python is None:
        pytest.skip("this machine has one Python 3 only")
    assert_refused(answer(tmp_path, python), tmp_path, python)


@pytest.mark.long  # in the gate: tests/test_worker_python_check.py
def test_workers_that_do_not_exist_are_refused_at_the_start(tmp_path: Path) -> None:
    python = str(tmp_path / "no-such-python")
    assert_refused(answer(tmp_path, python), tmp_path, python)


# the other tests here have the daemon of `ckpt.session`
def test_an_ordinary_session_with_this_python_runs(tmp_path: Path) -> None:
    assert "ENDED" in answer(tmp_path, sys.executable)
