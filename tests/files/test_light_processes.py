"""Spark starts a Python process for each query that reads files or a Delta table: its imports delay every start."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["spark_ckpt_files.stream", "spark_ckpt_delta.stream"])
def test_the_process_of_a_query_loads_no_pandas(module: str) -> None:
    code = f"import sys, {module}; print(*({{'pandas', 'pydantic'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
