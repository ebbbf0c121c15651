"""After an error the job's own text is last on the console, and Java's stacks are in the log file."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
from pathlib import Path
import spark_ckpt as ckpt
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

Path("inbox").mkdir()
Path("inbox/1.csv").write_text("customer,amount\\nada,4.5\\n")
spark = ckpt.session("orders")
job = ckpt.Job(spark, "orders", store="store")
orders = job.source("orders", FilesSource("inbox", "csv", "customer string, amount double"))

def divide(key, frames, state):
    yield 1 / 0

row = "customer string, total double"
totals = orders.groupBy("customer").applyInPandasWithState(divide, row, "total double", "update", "NoTimeout", name="totals")
totals.to(DeltaSink("totals"), name="totals")
job.start(availableNow=True).awaitTermination()
"""

pytestmark = pytest.mark.spark


@pytest.mark.long  # in the gate: tests/runtime/test_driver_log.py
def test_the_jobs_own_error_is_last_and_javas_stack_is_in_the_log(tmp_path):
    log = tmp_path / "spark.log"
    environment = {**os.environ, "SPARK_CKPT_SPARK_LOG": str(log), "PYTHONPATH": f"{ROOT}:{ROOT}/connectors"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    shown = run.stderr.splitlines()
    assert run.returncode == 1, run.stderr
    assert shown[-1].startswith("  next: "), run.stderr
    assert "ZeroDivisionError: division by zero" in run.stderr
    assert [line for line in shown if line.startswith("\tat ")] == [], run.stderr
    ours = next(number for number, line in enumerate(shown) if line.startswith("job=orders ended:"))
    assert [line for line in shown[ours:] if re.match(r"\d\d:\d\d:\d\d Spark ", line)] == []
    assert f"Spark's log with stacks: {log}" in run.stderr
    assert "\tat org.apache.spark." in log.read_text()
