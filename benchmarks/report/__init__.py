"""Tables and plots from the result lines."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report.contents import Contents
from benchmarks.report.drawing import draw
from benchmarks.report.lines import read
from benchmarks.report.page import PLOTS, markdown


def write(results: Path, folder: Path) -> None:
    """Write `folder/RESULTS.md` and its plots, and replace the old ones."""
    from benchmarks.systems import systems

    text, shown = markdown(Contents.over(read(results), systems()))
    plots = folder / PLOTS
    plots.mkdir(parents=True, exist_ok=True)
    drawn = {draw(chart, plots) for chart in shown}
    for stale in set(plots.glob("*.svg")) - drawn:
        stale.unlink()
    (folder / "RESULTS.md").write_text(text)
