"""Content of each plot, as plain data; `drawing` makes the pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarks.report import wording
from benchmarks.report.contents import Contents, Entry, Place, is_ours
from benchmarks.report.lines import Recorded
from benchmarks.report.parts import Stacks
from benchmarks.report.runs import K, Runs, Spread, grouped, ratio
from benchmarks.report.tables import MEBIBYTE, fastest_first
from benchmarks.report.targets import changed_share

RATE_AXIS = (
    "records per second, median; whiskers: range of the repeats\n"
    "in brackets: the best exactly-once spark_ckpt over this system"
)
COST_AXIS = "CPU seconds per million records, median; whiskers: range of the repeats"
LATENCY_AXIS = "seconds from input to committed output; bar: p99, tick: p50; whiskers: range of p99 over the repeats"
RECOVERY_AXIS = "seconds from kill -9 to the first new committed record, median; whiskers: range of the repeats"


@dataclass(frozen=True)
class Bar:
    """One system. `text` is at the bar's end; without a value the system failed. `mark`: a second value, a tick across
    the bar. `solid`: filled; else outlined only.
    """

    label: str
    text: str
    value: Spread | None
    ours: bool
    solid: bool
    mark: float | None = None


@dataclass(frozen=True)
class Bars:
    """Horizontal bars from zero; `axis` names the measure and its unit."""

    file: str
    title: str
    axis: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Series:
    """One line of a plot."""

    label: str
    points: tuple[tuple[float, Spread], ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes, x logarithmic."""

    axis: str
    series: tuple[Series, ...]
    scale: Literal["linear", "log"] = "linear"


@dataclass(frozen=True)
class Curves:
    """Panels in a row. `ticks`: positions and labels of the x axis, from left to right."""

    file: str
    title: str
    x_axis: str
    ticks: tuple[tuple[float, str], ...]
    panels: tuple[Panel, ...]


Chart = Bars | Curves | Stacks


def file_name(*parts: str) -> str:
    """File name of a plot; no separators within."""
    return (
        "-".join("".join(each if each.isalnum() or each in "-_" else "_" for each in part) for part in parts if part)
        + ".svg"
    )


# -- bars --------------------------------------------------------------------------------------------------------------


def of_throughput(contents: Contents, place: Place, entries: Mapping[Entry, Runs]) -> list[Chart]:
    """Rate and processor time of one job on one workload, the best first."""
    cost = {entry: runs.spread("cpu_s_per_million") for entry, runs in entries.items()}
    rates = [
        _bar(contents, entries, entry, runs.spread("records_per_s"), _rate_text(contents, entries, entry, runs))
        for entry, runs in fastest_first(entries)
    ]
    costs = [_bar(contents, entries, entry, value, wording.number(_middle(value))) for entry, value in cost.items()]
    return _with_values(
        Bars(file_name("throughput", *place), f"Throughput: {place}", RATE_AXIS, tuple(rates)),
        Bars(file_name("cpu", *place), f"Processor time: {place}", COST_AXIS, _least_first(costs)),
    )


def _rate_text(contents: Contents, entries: Mapping[Entry, Runs], entry: Entry, runs: Runs) -> str:
    rate, reference = runs.spread("records_per_s"), contents.reference(entries, entry.interval_ms)
    if rate is None or reference is None or reference[0] == entry.system:
        return wording.number(_middle(rate))
    value = ratio(reference[1], runs, "records_per_s")
    return f"{wording.number(rate.median)}  ({wording.times(_middle(value))})"


def _bar(
    contents: Contents,
    entries: Iterable[Entry],
    entry: Entry,
    value: Spread | None,
    text: str,
    mark: float | None = None,
) -> Bar:
    several = len({each.interval_ms for each in entries}) > 1
    solid = contents.guarantee(entry.system) != "at-least-once"
    notes = ["" if solid else "at-least-once", "" if contents.every_input(entry.system) else "not every input"]
    notes.append(f"every {wording.interval(entry.interval_ms)}" if several else "")
    label = "\n".join(filter(None, [contents.label(entry.system), ", ".join(filter(None, notes))]))
    return Bar(label, text if value else "failed", value, is_ours(entry.system), solid, mark)


def _middle(value: Spread | None) -> float | None:
    return value.median if value else None


def _least_first(bars: Iterable[Bar]) -> tuple[Bar, ...]:
    return tuple(sorted(bars, key=lambda bar: bar.value.median if bar.value else math.inf))


def _with_values(*charts: Bars) -> list[Chart]:
    return [chart for chart in charts if any(bar.value for bar in chart.bars)]


def of_latency(contents: Contents) -> list[Chart]:
    """A plot for every job, workload and offered rate."""
    cases = grouped(contents.of("latency"), lambda line: (Place(line.job, line.workload), contents.rate(line)))
    return [chart for (place, rate), runs in cases.items() for chart in _latency(contents, place, rate, runs)]


def _latency(contents: Contents, place: Place, rate: float | None, cases: Runs) -> list[Chart]:
    entries = grouped(cases.lines, lambda line: Entry(line.system, line.interval_ms))
    bars = []
    for entry, runs in sorted(entries.items(), key=lambda each: -each[0].interval_ms):
        p50, p99 = runs.spread("p50_ms"), runs.spread("p99_ms")
        text = f"p50 {wording.seconds_of_ms(_middle(p50))}, p99 {wording.seconds_of_ms(_middle(p99))}"
        bars.append(
            _bar(contents, entries, entry, p99.times(0.001) if p99 else None, text, p50.median / 1000 if p50 else None)
        )
    offered = "" if rate is None else f", {wording.number(rate)} records/s offered"
    name = file_name("latency", *place, "" if rate is None else f"{rate:.0f}")
    return _with_values(Bars(name, f"Latency: {place}{offered}", LATENCY_AXIS, tuple(bars)))


def of_recovery(contents: Contents) -> list[Chart]:
    """A plot for every job and workload."""
    return [
        chart for place, entries in contents.places("recovery").items() for chart in _recovery(contents, place, entries)
    ]


def _recovery(contents: Contents, place: Place, entries: Mapping[Entry, Runs]) -> list[Chart]:
    taken = {entry: runs.spread("first_record_s") for entry, runs in entries.items()}
    bars = [_bar(contents, entries, entry, value, wording.seconds(_middle(value))) for entry, value in taken.items()]
    return _with_values(Bars(file_name("recovery", *place), f"Recovery: {place}", RECOVERY_AXIS, _least_first(bars)))


# -- curves ------------------------------------------------------------------------------------------------------------


def of_intervals(contents: Contents) -> list[Chart]:
    """Loss of throughput, as the interval shrinks."""
    lines = [
        Series(_of_one(contents, system, place, contents.of("interval")), points)
        for place, entries in contents.places("interval").items()
        for system in dict.fromkeys(entry.system for entry in entries)
        if (points := _losses(entries, system))
    ]
    ticks = {x: wording.interval(round(x * 1000)) for line in lines for x, _ in line.points}
    if not lines:
        return []
    shown = tuple(sorted(ticks.items(), reverse=True))
    panel = Panel("throughput lost against no epochs, %", tuple(lines))
    return [Curves("interval.svg", "What epochs cost as the interval shrinks", "epochs every", shown, (panel,))]


def _losses(entries: Mapping[Entry, Runs], system: str) -> tuple[tuple[float, Spread], ...]:
    found = [
        (entry.interval_ms / 1000, lost.times(100))
        for entry, runs in entries.items()
        if entry.system == system and (lost := runs.spread("lost"))
    ]
    return tuple(sorted(found))


def _of_one(contents: Contents, system: str, place: Place, among: Iterable[Recorded]) -> str:
    """The parts of a name that distinguish it from the others."""
    among = list(among)
    parts = [contents.label(system)] if len({line.system for line in among}) > 1 else []
    if len({(line.job, line.workload) for line in among}) > 1:
        parts.append(str(place))
    return ", ".join(filter(None, parts))


def of_state_size(contents: Contents) -> list[Chart]:
    """Time and bytes of an epoch against the number of keys."""
    lines = contents.of("epoch")
    cases = grouped(lines, lambda line: (line.system, changed_share(line) or 0.0))
    names = {case: _share_label(contents, *case, lines) for case in cases}
    panels = (
        Panel("epoch, ms", _against_keys(names, cases, "epoch_ms", 1)),
        Panel("written, MiB", _against_keys(names, cases, "bytes", 1 / MEBIBYTE), "log"),
    )
    shown = tuple(panel for panel in panels if panel.series)
    ticks = {x: wording.keys(x) for panel in shown for line in panel.series for x, _ in line.points}
    title = "What an epoch costs as the state grows"
    return [Curves("state-size.svg", title, "keys in the state", tuple(sorted(ticks.items())), shown)] if shown else []


def _share_label(contents: Contents, system: str, share: float, among: Iterable[Recorded]) -> str:
    return ", ".join(
        filter(
            None, [_of_one(contents, system, Place("", ""), _without_place(among)), f"{wording.share(share)} changed"]
        )
    )


def _without_place(lines: Iterable[Recorded]) -> list[Recorded]:
    return [line.model_copy(update={"job": "", "workload": ""}) for line in lines]


def _against_keys(names: Mapping[K, str], cases: Mapping[K, Runs], value: str, unit: float) -> tuple[Series, ...]:
    lines = [Series(names[case], _points(runs, value, unit)) for case, runs in cases.items()]
    return tuple(line for line in lines if line.points)


def _points(runs: Runs, name: str, unit: float) -> tuple[tuple[float, Spread], ...]:
    by_keys = grouped(runs.lines, lambda line: line.number("keys") or 0.0)
    points = [(keys, value.times(unit)) for keys, each in by_keys.items() if keys and (value := each.spread(name))]
    return tuple(sorted(points, key=lambda point: point[0]))
