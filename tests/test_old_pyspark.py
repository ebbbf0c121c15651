"""A job on a PySpark that cannot run it is refused, with the command that installs one. An outbox supports more versions."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pyspark
import pytest

import spark_ckpt as ckpt
from spark_ckpt.errors import EnvironmentUnfit
from spark_ckpt.spark_versions import JOBS, require_spark_of_jobs

OLD = "import sys, pyspark.sql.datasource; sys.modules['pyspark.sql.streaming.datasource'] = None; "
"""As in PySpark 4.1, the module is missing. Imports of it by 4.2 itself come first."""


@pytest.mark.parametrize("module", ["spark_ckpt_files", "spark_ckpt_delta"])
def test_an_old_pyspark_is_refused_with_the_versions_that_work(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{OLD}import {module}.stream"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode
    assert "EnvironmentUnfit: [CKPT_ENVIRONMENT_UNFIT] PySpark " in done.stderr
    assert "pyspark>=4.2.0,<4.3" in done.stderr


def test_a_pyspark_with_the_module_is_accepted() -> None:
    subprocess.run([sys.executable, "-c", "import spark_ckpt_files.stream"], timeout=120, check=True)


@pytest.mark.parametrize("version", ["3.5.6", "4.1.4", "4.3.0", "4.20.0", "5.0.0.dev1"])
def test_a_job_on_another_pyspark_is_refused_with_the_command_that_installs_one(version: str) -> None:
    with pytest.raises(EnvironmentUnfit) as refused:
        require_spark_of_jobs("ckpt.Job", version)
    assert refused.value.context["pyspark"] == version
    assert "pip install 'spark-ckpt[jobs]'" in refused.value.hint


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.2.0.dev2"])
def test_the_pyspark_of_jobs_is_accepted(version: str) -> None:
    require_spark_of_jobs("ckpt.Job", version)


def test_job_and_session_compare_the_version_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    with pytest.raises(EnvironmentUnfit):
        ckpt.session("orders")
    with pytest.raises(EnvironmentUnfit):
        ckpt.Job(None, "orders", store="unused")  # type: ignore[arg-type]


def test_a_name_that_an_old_pyspark_cannot_load_is_refused_the_same_way() -> None:
    code = "import sys, pyspark; pyspark.__version__ = '3.5.6'; sys.modules['pyspark.sql.conversion'] = None; "
    done = subprocess.run(
        [sys.executable, "-c", f"{code}import spark_ckpt; spark_ckpt.Outbox; spark_ckpt.Job"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "EnvironmentUnfit: [CKPT_ENVIRONMENT_UNFIT] PySpark 3.5.6 cannot run ckpt.Job" in done.stderr


def test_the_extra_brings_the_pyspark_that_jobs_run_on() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert JOBS in project["optional-dependencies"]["jobs"]
