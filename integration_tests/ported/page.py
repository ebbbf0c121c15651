"""`docs/ported.md`: the table of the ported programs, from the results of the last run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from integration_tests.ported.menu import PROGRAMS
from integration_tests.survival.process import ROOT

RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "ported.md"
MARK = "<!-- table: python -m integration_tests.ported -->"
HEADS = ("pattern", "plain lines", "removed", "added", "equal", "change")


@dataclass(frozen=True)
class Measured:
    """A run with equal output. `code`: fingerprint of the program that ran. `point`, `interval`: see `Outcome`."""

    code: str
    seed: int
    files: int
    rows: int
    point: str
    interval: str


def read(path: Path = RESULTS) -> dict[str, Measured]:
    """Return the results by program."""
    if not path.exists():
        return {}
    return {name: Measured(**each) for name, each in json.loads(path.read_text()).items()}


def write(measured: Mapping[str, Measured], path: Path = RESULTS) -> None:
    """Replace the results."""
    ordered = {name: asdict(measured[name]) for name in PROGRAMS if name in measured}
    path.write_text(json.dumps(ordered, indent=1) + "\n")


def write_page(page: Path = PAGE) -> None:
    """Replace everything after the mark by the tables."""
    head = page.read_text().partition(MARK)[0]
    page.write_text(head + MARK + "\n\n" + tables(read()))


def tables(measured: Mapping[str, Measured]) -> str:
    """Return the tables of the page. A program that has changed since its run is not equal."""
    lines = [f"| {' | '.join(HEADS)} |", "|---|" + "---:|" * 3 + "---|---|"]
    totals = [0, 0, 0]
    for name, ported in PROGRAMS.items():
        changes, run = ported.changes, measured.get(name)
        counts = (changes.lines, changes.removed, changes.added)
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        equal = (
            f"yes: {run.files} files, {run.rows} rows" if run is not None and run.code == ported.digest else "not run"
        )
        lines.append(f"| {name} | {' | '.join(map(str, counts))} | {equal} | {ported.change} |")
    lines.append(f"| all | {' | '.join(map(str, totals))} | | |")
    originals = ["| pattern | public original | interval | job failed at |", "|---|---|---|---|"]
    for name, ported in PROGRAMS.items():
        run = measured.get(name)
        interval, point = (run.interval, run.point) if run is not None else ("", "")
        originals.append(f"| {name} | `{ported.original}` | {interval} | {point} |")
    return "\n".join([*lines, "", "## Public originals", "", *originals]) + "\n"
