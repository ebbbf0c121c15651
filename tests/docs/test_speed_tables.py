"""The tables of speed show the medians of the measured lines, rounded, and the page of results is of these lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.report.contents import Contents, Entry, Place
from benchmarks.report.lines import read
from benchmarks.report.page import markdown
from benchmarks.report.runs import Runs
from benchmarks.systems import systems

ROOT = Path(__file__).parents[2]
EVERY_MS = 5000
SUMS, MORE, MOST = (Place("running_sum", f"uniform-{keys}") for keys in ("10k", "1m", "10m"))
SESSIONS, UNCHANGED = Place("sessions", "uniform-10k"), Place("pass_through", "uniform-10k")
VECTORISED, BUILT_IN = "spark_ckpt-vectorised", "spark_ckpt-builtin"
README_ROWS = {
    "running sum, 10,000 keys": SUMS,
    "running sum, 1,000,000 keys": MORE,
    "sessions": SESSIONS,
    "unchanged records": UNCHANGED,
}
SIZING_ROWS = {
    "records unchanged": (UNCHANGED, BUILT_IN),
    "running sum, 10,000 keys, `applyVectorized`": (SUMS, VECTORISED),
    "the same, `applyInPandasWithState` with tuples": (SUMS, "spark_ckpt-dropin"),
    "sessions, `applyVectorized`": (SESSIONS, VECTORISED),
    "running sum, 1 million keys, `applyVectorized`": (MORE, VECTORISED),
    "running sum, 10 million keys, built-in": (MOST, BUILT_IN),
}


@pytest.fixture(scope="module")
def measured() -> Contents:
    return Contents.over(read(ROOT / "benchmarks" / "results.jsonl"), systems())


def table(page: str, heading: str) -> dict[str, list[str]]:
    """Cells of the first table below a heading, by the cell of the first column; without the heads."""
    section = (ROOT / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*\|$", section, re.MULTILINE)]
    return {first: rest for first, *rest in rows[2:]}


def runs_of(measured: Contents, place: Place, system: str) -> Runs | None:
    return measured.places("throughput")[place].get(Entry(system, EVERY_MS))


def shown(runs: Runs | None) -> str:
    """A rate to three digits, and to a thousand at least."""
    rate = runs and runs.median("records_per_s")
    return f"{round(rate, -3 if rate < 1_000_000 else -4):,.0f}" if rate else ""


def test_the_table_of_the_readme_is_what_was_measured(measured: Contents) -> None:
    def ours(place: Place) -> str:
        return BUILT_IN if place == UNCHANGED else VECTORISED

    assert table("README.md", "Speed") == {
        row: [
            shown(runs_of(measured, place, system)) for system in (ours(place), "flink_sql", "quix", "pyspark-pandas")
        ]
        for row, place in README_ROWS.items()
    }


def test_the_numbers_of_the_readme_are_of_one_session(measured: Contents) -> None:
    """Two runs of each program in the first row, one in the others."""
    shown_runs = {
        (place, system): runs
        for place in README_ROWS.values()
        for system in (BUILT_IN if place == UNCHANGED else VECTORISED, "flink_sql", "quix", "pyspark-pandas")
        if (runs := runs_of(measured, place, system)) is not None
    }
    assert len({line.session for runs in shown_runs.values() for line in runs.lines}) == 1
    assert {(place == SUMS, len(runs.good)) for (place, _), runs in shown_runs.items()} == {(True, 2), (False, 1)}


def test_the_table_of_sizing_is_what_was_measured(measured: Contents) -> None:
    assert table("docs/sizing.md", "Reach more throughput") == {
        row: [shown(runs_of(measured, *cell))] for row, cell in SIZING_ROWS.items()
    }


def test_the_page_of_results_is_of_the_measured_lines(measured: Contents) -> None:
    """Regenerate with: python -m benchmarks --report-only"""
    assert markdown(measured)[0] == (ROOT / "benchmarks" / "RESULTS.md").read_text()
