"""On a PySpark that lacks what this library stands on, the first import of a source says so, and which versions work."""

from __future__ import annotations

import subprocess
import sys

import pytest

OLD = "import sys, pyspark.sql.datasource; sys.modules['pyspark.sql.streaming.datasource'] = None; "
"""As PySpark 4.1: the module is not there. What 4.2 itself imports of it comes first."""


@pytest.mark.parametrize("module", ["spark_ckpt_files", "spark_ckpt_delta"])
def test_an_old_pyspark_is_refused_with_the_versions_that_work(module: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", f"{OLD}import {module}.stream"], capture_output=True, text=True, timeout=120, check=False
    )
    assert told.returncode
    assert "EnvironmentUnfit: [CKPT_ENVIRONMENT_UNFIT] PySpark " in told.stderr
    assert "pyspark>=4.2.0,<4.3" in told.stderr


def test_a_pyspark_that_has_it_is_taken() -> None:
    subprocess.run([sys.executable, "-c", "import spark_ckpt_files.stream"], timeout=120, check=True)
