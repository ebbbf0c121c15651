"""Run the program of an outbox until its cases are finished, and judge them by their tables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from deltalake import DeltaTable, QueryBuilder

from integration_tests.outbox.outbox_cases import SOME
from integration_tests.outbox.outbox_query import expected

PROGRAM = "integration_tests.outbox.outbox_cases"
Rows = Mapping[str, Counter[tuple[object, ...]]]


class Unfinished(Exception):
    """The program ended with its own error, or did not end."""


def run_until_done(
    folder: Path,
    cases: Sequence[str],
    python: str = sys.executable,
    remote: bool = False,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 300,
) -> int:
    """Start the program until it has finished every case. Return the number of starts. Raises `Unfinished`."""
    if remote:
        environment = {**(environment or os.environ), "SPARK_TESTING": "1"}  # lets the server use a free port
    command = [python, "-m", PROGRAM, str(folder), *(["--remote"] if remote else []), *cases]
    for number in range(1, 2 + len(cases)):
        before = killed(folder)
        with (folder / "said").open("w") as said:
            process = subprocess.Popen(
                command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = -1
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its Java, too
            process.wait()
        if code == 0:
            return number
        # Through Connect the function's own process is killed, and the program gets an error.
        if killed(folder) == before:
            raise Unfinished(f"exit code {code}: {(folder / 'said').read_text()[-3000:]}")
    raise Unfinished(f"{number} starts were not enough: {(folder / 'said').read_text()[-3000:]}")


def killed(folder: Path) -> set[Path]:
    """Return the kills so far."""
    return set(folder.glob("*/*/killed/*"))


def rows(place: Path) -> Rows:
    """Return the rows of both tables of a case."""
    return {name: _rows(place / name) for name in ("gold", "some")}


def wrong(folder: Path, case: str, files: range) -> str:
    """Return the difference between a case that was killed and its query that was not; nothing if there is none."""
    if not list((folder / case / "killed").iterdir()):
        return "was not killed"
    query, found = case.partition("/")[0], rows(folder / case)
    wanted = of_windows(files) if query == "windows" else rows(folder / "whole" / query)
    for name, counted in wanted.items():
        if not counted:
            return f"{name} is empty in the undisturbed run"
        if lost := counted - found[name]:
            return f"{name} lacks {lost.total()} rows"
        if more := found[name] - counted:
            return f"{name} has {more.total()} rows more"
    return ""


def of_windows(files: range) -> Rows:
    """Return the rows of both tables of the windowed query, computed without Spark."""
    every = expected(files)
    return {"gold": Counter(every), "some": Counter((row[1],) for row in every.elements() if row[1] < SOME)}


def _rows(table: Path) -> Counter[tuple[object, ...]]:
    if not (table / "_delta_log").exists():
        return Counter()
    found = QueryBuilder().register("t", DeltaTable(str(table))).execute("select * from t").read_all()
    columns = [found[name].to_pylist() for name in found.column_names]
    return Counter(zip(*columns, strict=True))
