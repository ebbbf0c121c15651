"""The unit tests of the epoch protocol cover every branch of it; each run measures the coverage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
MACHINES = ("protocol",)
TESTS = ("protocol", "epochs_of_an_incarnation", "ack_records", "sending", "unpublished_sinks")


def not_taken(folder: Path, tests: Sequence[str]) -> dict[str, list[object]]:
    """Return lines and branches of the shipped machines that these test files do not cover, by module."""
    modules = ",".join(f"*/spark_ckpt/coordination/{name}.py" for name in MACHINES)
    environment = {**os.environ, "COVERAGE_FILE": str(folder / "data")}
    measured = ["-m", "coverage", "run", "--branch", "--source=spark_ckpt.coordination"]
    pytest_of = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(f"tests/coordination/test_{name}.py" for name in tests),
    ]
    report = ["-m", "coverage", "json", "-q", f"--include={modules}", "-o", str(folder / "report.json")]
    for arguments in ([*measured, *pytest_of], report):
        ran = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    files = json.loads((folder / "report.json").read_text())["files"]
    return {Path(name).stem: [*each["missing_lines"], *each["missing_branches"]] for name, each in files.items()}


def test_the_unit_tests_of_the_shipped_machines_cover_every_branch(tmp_path: Path) -> None:
    assert not_taken(tmp_path, TESTS) == {name: [] for name in MACHINES}


def test_a_branch_without_a_test_is_found(tmp_path: Path) -> None:
    assert not_taken(tmp_path, ("ack_records",))["protocol"]
