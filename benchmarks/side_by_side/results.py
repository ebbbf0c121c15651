"""The file of result lines. A run replaces the lines that it measures again, and keeps the rest."""

from __future__ import annotations

import json
import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.report.lines import Line, read
from spark_ckpt import jars

Cell = tuple[str, str, str, str, int, float | None]


class Results:
    """Lines of one run among those of earlier runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._new: set[Cell] = set()
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, line: Line) -> None:
        """Add a line. It is on disk when this returns, so an interrupted run keeps its lines."""
        if line.measure != "machine" and cell(line) not in self._new:
            self._new.add(cell(line))
            self._forget(cell(line))
        with self.path.open("a") as file:
            file.write(line.model_dump_json() + "\n")

    def _forget(self, old: Cell) -> None:
        if not self.path.exists():
            return
        kept = [line for line in read(self.path) if line.measure == "machine" or cell(line) != old]
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(line.model_dump_json() + "\n" for line in _without_empty_runs(kept)))
        fresh.replace(self.path)


def _without_empty_runs(lines: list[Line]) -> list[Line]:
    """Also drop a machine's line whose measurements are all replaced, except the last one, whose measurements are still to come."""
    pairs = zip(lines, [*lines[1:], None], strict=True)
    return [line for line, after in pairs if line.measure != "machine" or after is None or after.measure != "machine"]


def cell(line: Line) -> Cell:
    """Key of all repeats of one measurement, at one rate if the rate is chosen. A job's own rate is a result, under other names."""
    return line.measure, line.job, line.workload, line.system, line.interval_ms, line.number("rate")


def machine(versions: dict[str, str]) -> Line:
    """The machine and the versions of a run."""
    number = re.search(r'version "([^"]+)"', jars.reported_version(jars.find_java()))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    own = {"python": platform.python_version(), "java": number[1] if number else "unknown"}
    values = {
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.release()}",
        "versions": own | versions,
        "load": [round(each, 2) for each in os.getloadavg()],
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    return Line(measure="machine", values=values)


def inside_lines(module: str, printed: str, code: int) -> list[Line]:
    """Result lines in the output of a measurement inside spark_ckpt, and one line with its tables, or with its failure."""
    texts = printed.splitlines()
    lines = [Line.model_validate(json.loads(text)) for text in texts if text.startswith("{")]
    if code:
        return [*lines, Line(measure="table", system=module, values={"failed": f"ended with code {code}"})]
    table = "\n".join(text for text in texts if text.startswith("|"))
    return [*lines, Line(measure="table", system=module, values={"markdown": table})] if table else lines
