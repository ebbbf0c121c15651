"""Plots as SVG: the same bytes for the same numbers, with light and dark colours by the reader's setting."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report.charts import Bar, Bars, Chart, Curves, Panel, Series
from benchmarks.report.parts import Stack, Stacks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours of Okabe and Ito, which colour-blind readers can distinguish; darker or lighter if the background needs it.
INK, PAPER, RULE, OURS, PEER = "#1f2329", "#ffffff", "#d5d9de", "#0072b2", "#7f8790"
LINES = (OURS, "#d55e00", "#009e73", "#cc79a7", "#b8860b")
MARKERS = ("o", "s", "^", "D", "v")
IN_THE_DARK = {INK: "#e6e8eb", PAPER: "#15181d", RULE: "#3a4048", OURS: "#3d8fc6", PEER: "#666e78"}
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "spark_ckpt", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 9, "text.color": INK,
    "axes.edgecolor": RULE, "axes.labelcolor": INK, "axes.facecolor": PAPER, "figure.facecolor": PAPER, "xtick.color": INK,
    "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left", "axes.titlesize": 11,
    "axes.titleweight": "bold", "axes.labelsize": 8.5, "axes.axisbelow": True,
}  # fmt: skip
WIDTH_IN, BAR_IN, AROUND_IN, CURVES_IN = 8.2, 0.42, 1.05, 3.6
STACK_IN, LEGEND_LINE_IN, LEGEND_COLUMNS = 0.5, 0.2, 3
PARTS = (
    ("#7f8790", ""), ("#f0c66e", ""), ("#b8860b", ""), ("#d55e00", ""), ("#56b4e9", ""), ("#0072b2", ""), ("#004c78", ""),
    ("#7fa8d8", "//"), ("#56b4e9", "//"), ("#7f8790", "//"), ("#cc79a7", ""), ("#7f8790", ".."), ("#8fd1b3", ""), ("#5cb893", ""),
    ("#009e73", ""), ("#006e50", ""), ("#a9c94f", ""), ("#e03b3b", "xx"),
)  # fmt: skip
"""Colour and hatch of a part, by its number: waiting grey, Spark's own work yellow to red, tasks blue, publishing green."""
LABEL_GAP_PT = 12
CLEAR = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}


def draw(chart: Chart, folder: Path) -> Path:
    """Draw one chart to a file."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise RuntimeError("plots need matplotlib: pip install 'spark-ckpt[bench]'") from error
    with mpl.rc_context():
        mpl.rcdefaults()
        for name, value in SETTINGS.items():
            mpl.rcParams[name] = value
        figure = _figure_of(chart)
        path = folder / chart.file
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Title": chart.title})
    path.write_text(for_both_backgrounds(path.read_text()))
    return path


def _figure_of(chart: Chart) -> Figure:
    match chart:
        case Bars():
            return _bars(chart)
        case Stacks():
            return _stacks(chart)
    return _curves(chart)


def for_both_backgrounds(svg: str) -> str:
    """Add rules that swap the colours on a dark screen; a reader that ignores them sees dark on white."""
    rules = [
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in IN_THE_DARK.items()
        for kind in ("fill", "stroke")
    ]
    style = f"<style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>"
    return re.sub(r"(<svg [^>]*>)", lambda found: found[1] + style, svg, count=1)


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH_IN, height), layout="constrained")


# -- bars --------------------------------------------------------------------------------------------------------------


def _bars(chart: Bars) -> Figure:
    figure = _figure(AROUND_IN + BAR_IN * len(chart.bars))
    axes = figure.subplots()
    for row, bar in enumerate(chart.bars):
        _bar(axes, row, bar)
    longest = max(bar.value.most for bar in chart.bars if bar.value) or 1.0
    axes.set_xlim(0, longest * (1.1 + 0.014 * max(len(bar.text) for bar in chart.bars)))
    axes.set_ylim(len(chart.bars) - 0.4, -0.6)
    axes.set_yticks(range(len(chart.bars)), [bar.label for bar in chart.bars], linespacing=1.15)
    axes.set_title(chart.title, x=0, loc="left")
    _bar_axes(axes, chart, longest)
    return figure


def _bar_axes(axes: Axes, chart: Bars | Stacks, longest: float) -> None:
    axes.set_xlabel(chart.axis, loc="left", linespacing=1.3)
    axes.xaxis.set_major_formatter("{x:,.0f}" if longest >= 10 else "{x:g}")
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=RULE, linewidth=0.6)
    axes.locator_params(axis="x", nbins=6)


def _bar(axes: Axes, row: int, bar: Bar) -> None:
    if bar.value is None:
        axes.annotate(bar.text, (0, row), (5, 0), textcoords="offset points", va="center", style="italic")
        return
    colour = OURS if bar.ours else PEER
    axes.barh(
        row, bar.value.median, height=0.56, facecolor=colour if bar.solid else PAPER, edgecolor=colour, linewidth=1.2
    )
    if bar.value.count > 1:
        beyond = [[bar.value.median - bar.value.least], [bar.value.most - bar.value.median]]
        axes.errorbar(bar.value.median, row, xerr=beyond, color=INK, capsize=3, linewidth=1)
    if bar.mark is not None:
        axes.plot([bar.mark, bar.mark], [row - 0.4, row + 0.4], color=INK, linewidth=2)
    weight = "bold" if bar.ours else "normal"
    axes.annotate(
        bar.text, (bar.value.most, row), (6, 0), textcoords="offset points", va="center", weight=weight, bbox=CLEAR
    )


# -- bars of parts -----------------------------------------------------------------------------------------------------


def _stacks(chart: Stacks) -> Figure:
    labels = {segment.number: segment.label for stack in chart.stacks for segment in stack.segments}
    figure = _figure(
        AROUND_IN + STACK_IN * len(chart.stacks) + LEGEND_LINE_IN * math.ceil(len(labels) / LEGEND_COLUMNS)
    )
    axes = figure.subplots()
    for row, stack in enumerate(chart.stacks):
        _stack(axes, row, stack)
    longest = max(stack.whole for stack in chart.stacks) or 1.0
    axes.set_xlim(0, longest * (1.1 + 0.014 * max(len(stack.text) for stack in chart.stacks)))
    axes.set_ylim(len(chart.stacks) - 0.4, -0.6)
    axes.set_yticks(range(len(chart.stacks)), [stack.label for stack in chart.stacks], linespacing=1.15)
    figure.suptitle(chart.title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    _bar_axes(axes, chart, longest)
    _legend(figure, labels)
    return figure


def _stack(axes: Axes, row: int, stack: Stack) -> None:
    left = 0.0
    for segment in stack.segments:
        colour, hatch = PARTS[segment.number % len(PARTS)]
        axes.barh(
            row, segment.value, left=left, height=0.6, facecolor=colour, edgecolor=PAPER, linewidth=0.5, hatch=hatch
        )
        left += segment.value
    weight = "bold" if stack.ours else "normal"
    axes.annotate(stack.text, (left, row), (6, 0), textcoords="offset points", va="center", weight=weight, bbox=CLEAR)


def _legend(figure: Figure, labels: Mapping[int, str]) -> None:
    """Legend in the parts' order, below the axes."""
    from matplotlib.patches import Patch

    shown = {number: PARTS[number % len(PARTS)] for number in sorted(labels)}
    patches = [
        Patch(facecolor=colour, edgecolor=PAPER, hatch=hatch, label=labels[number])
        for number, (colour, hatch) in shown.items()
    ]
    figure.legend(handles=patches, loc="outside lower left", ncols=LEGEND_COLUMNS, frameon=False, fontsize=8)


# -- curves ------------------------------------------------------------------------------------------------------------


def _curves(chart: Curves) -> Figure:
    figure = _figure(CURVES_IN)
    for axes, panel in zip(figure.subplots(1, len(chart.panels), squeeze=False)[0], chart.panels, strict=True):
        _panel(axes, chart, panel)
    figure.suptitle(chart.title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.draw_without_rendering()
    for axes, panel in zip(figure.axes, chart.panels, strict=True):
        _name_at_the_end(axes, chart, panel)
    return figure


def _panel(axes: Axes, chart: Curves, panel: Panel) -> None:
    axes.set_xscale("log")
    axes.set_yscale(panel.scale)
    for index, series in enumerate(panel.series):
        _line(axes, series, LINES[index % len(LINES)], MARKERS[index % len(MARKERS)])
    axes.set_title(panel.axis, fontsize=9, fontweight="normal")
    axes.set_xlabel(chart.x_axis)
    axes.set_xticks([x for x, _ in chart.ticks], [text for _, text in chart.ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(*_limits(chart))
    if panel.scale == "linear":
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.tick_params(which="both", length=0)
    axes.grid(axis="y", color=RULE, linewidth=0.6)


def _limits(chart: Curves) -> tuple[float, float]:
    """From the first tick to the last; they may decrease."""
    first, last = chart.ticks[0][0], chart.ticks[-1][0]
    room = 1.15 if first <= last else 1 / 1.15
    return first / room, last * room


def _line(axes: Axes, series: Series, colour: str, marker: str) -> None:
    xs = [x for x, _ in series.points]
    middle = [value.median for _, value in series.points]
    beyond = [
        [value.median - value.least for _, value in series.points],
        [value.most - value.median for _, value in series.points],
    ]
    axes.errorbar(
        xs, middle, yerr=beyond, color=colour, marker=marker, markersize=5, linewidth=1.6, capsize=3, elinewidth=1
    )


def _name_at_the_end(axes: Axes, chart: Curves, panel: Panel) -> None:
    """Write each line's name right of its last point, without overlaps."""
    last = chart.ticks[-1][0]
    ends = [(min(each.points, key=lambda point: abs(point[0] - last)), each.label) for each in panel.series]
    heights = [axes.transData.transform((x, value.median))[1] for (x, value), _ in ends]
    scale = 72 / axes.figure.dpi
    for index, shift in enumerate(apart([height * scale for height in heights], LABEL_GAP_PT)):
        (x, value), label = ends[index]
        colour = LINES[index % len(LINES)]
        axes.annotate(
            label, (x, value.median), (9, shift), textcoords="offset points", va="center", color=colour, fontsize=8.5
        )


def apart(heights: list[float], gap: float) -> list[float]:
    """Shifts that leave at least `gap` between any two heights; their order and their mean stay."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed: list[float] = []
    for index in order:
        placed.append(max(heights[index], placed[-1] + gap) if placed else heights[index])
    back = sum(placed) / len(placed) - sum(heights) / len(heights) if placed else 0
    moved = {index: height - back - heights[index] for index, height in zip(order, placed, strict=True)}
    return [moved[index] for index in range(len(heights))]
