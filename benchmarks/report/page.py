"""RESULTS.md: the measurements, the targets, then every table with its plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from benchmarks.report import charts, parts, tables
from benchmarks.report.charts import Chart, Curves
from benchmarks.report.contents import Contents, Entry, Place
from benchmarks.report.lines import Line, Measure
from benchmarks.report.runs import Runs
from benchmarks.report.targets import verdicts

PLOTS = "plots"
ONE_REPEAT = "median (least to most)"
JUDGED = (
    "The verdict is by the medians; brackets have the range, for a ratio the range of the ratios within each repeat. Output that "
    "is not exact misses its target at any speed."
)
RATES = (
    "The ratio compares medians at the same checkpoint interval: the fastest exactly-once variant of spark_ckpt over the "
    f"system of the row, so below 1 the peer is faster. Records/s: {ONE_REPEAT} of the repeats; processor time, memory and "
    "first output: medians. Duplicates, missing and wrong records: all repeats together, as a `read_committed` reader finds "
    "them."
)
SOME_INPUTS = "[1] Does not answer every input; its rate is of the inputs that its output covers."
OTHER_SESSION = "[2] Not measured in one session with the reference: the machine may have changed between them."
DRAIN = (
    "Each system answers NEXMark's queries over one filled topic of people, auctions and bids in JSON (1:3:46, skewed as in the "
    "reference generator, out of order by up to a second), 10,000 events a second of event time. Events/s: events in the topic "
    "over the time from the start of the program to the commit of the last record of its answer. spark_ckpt skips "
    "records of other kinds by the beginning of their text; Flink SQL has NEXMark's own queries and settings, state on the heap. "
    "Faults are rows of the answer, which is computed from the events independently: of q4, q18 and q19 the last row of each key "
    "counts, of q12 each bidder's sum over the windows."
)
LATENCY = (
    "From the creation of an input to the receipt of its output by a `read_committed` reader, so exactly-once output waits for the "
    f"checkpoint that commits it. {ONE_REPEAT.capitalize()} of the repeats; largest: over all of them."
)
PARTS = (
    "Every input of the measured window, from its creation to the receipt of its output by a `read_committed` reader, divided by "
    "the system's own records of its batches and epochs: means, which add up to the whole, and percentiles, which do not. Time "
    "that no record covers is unexplained. Plain Spark's sink is at-least-once: its rows are readable while the batch runs, so "
    "its action ends for a record when its output is read. Of several repeats the table shows the middle one."
)
RECOVERY = "SIGKILL ends all processes of the system, which start again at once. The last column has the time of the first start."
INTERVALS = "spark_ckpt alone: the same job with epochs, between two runs without. A negative loss is noise."
STATE_SIZE = "spark_ckpt alone: epochs that change a share of the keys, over states of different sizes."
FAILED = "Runs without numbers. No median above includes them."


def markdown(contents: Contents) -> tuple[str, list[Chart]]:
    """The page and its plots."""
    shown: list[Chart] = []
    blocks: list[str] = []
    for block in _blocks(contents):
        if isinstance(block, str):
            blocks.append(block)
        else:
            shown.append(block)
            blocks.append(f"![{_described(block)}]({PLOTS}/{block.file})")
    return "\n\n".join(blocks) + "\n", shown


def _blocks(contents: Contents) -> Iterator[str | Chart]:
    yield "# Results"
    yield statement(contents)
    rows = verdicts(contents)
    if rows:
        yield from ("## Targets", summed_up([row.state for row in rows]), tables.of_targets(rows))
    if contents.of("throughput"):
        yield from ("## Throughput", RATES)
    for place, entries in contents.places("throughput").items():
        yield from _throughput(contents, place, entries)
    yield from _section(contents, "drain", "NEXMark", DRAIN, tables.of_queries, _no_plots)
    yield from _section(contents, "latency", "Latency", LATENCY, tables.of_latency, charts.of_latency)
    yield from _section(contents, "parts", "Parts of a record's time", PARTS, parts.of_parts, parts.charts_of_parts)
    yield from _section(contents, "recovery", "Recovery", RECOVERY, tables.of_recovery, charts.of_recovery)
    yield from _section(
        contents, "interval", "The interval between epochs", INTERVALS, tables.of_intervals, charts.of_intervals
    )
    yield from _section(
        contents, "epoch", "The size of the state", STATE_SIZE, tables.of_state_size, charts.of_state_size
    )
    yield from _inside(contents)
    if contents.failed:
        yield from ("## Failed runs", FAILED, tables.of_failures(contents))


def summed_up(states: Sequence[str]) -> str:
    """Count each state."""
    counted = [f"{states.count(state)} {state}" for state in ("reached", "missed", "not decided") if state in states]
    return f"Of {len(states)}: {', '.join(counted)}. {JUDGED}"


# -- the machine -------------------------------------------------------------------------------------------------------


def statement(contents: Contents) -> str:
    """The measured jobs, the machine, and the versions."""
    what = (
        "Every system ran the same jobs over the same Kafka topics, in turns, with parallelism 2, on one machine that it shared "
        "with the broker; its committed output was counted from outside and verified record by record. Ratios hold within a "
        "table; this is not a cluster result. How it is measured: `docs/design/benchmarks.md`."
    )
    sessions = sorted((line.values for line in contents.of("machine")), key=_hardware)
    machines = [_machine(hardware, list(each)) for hardware, each in groupby(sessions, _hardware)]
    several = "The lines come from several sessions. " if len(sessions) > 1 else ""
    return f"{what} {several}{' '.join(machines)}".strip()


def _hardware(session: Mapping[str, Any]) -> str:
    memory = session.get("memory_gib")
    facts = [
        f"{session['cores']} cores" if "cores" in session else "",
        f"{memory:.3g} GiB" if memory is not None else "",
        str(session.get("system") or ""),
    ]
    return "; ".join(filter(None, facts))


def _machine(hardware: str, sessions: Sequence[Mapping[str, Any]]) -> str:
    """One machine's sessions in a sentence: their dates, versions, and the load before them."""
    days = sorted({str(each["date"]) for each in sessions if each.get("date")})
    pairs = {(name, version) for each in sessions for name, version in (each.get("versions") or {}).items()}
    versions = {name: [version for _, version in found] for name, found in groupby(sorted(pairs), itemgetter(0))}
    known = ", ".join(f"{name} {' and '.join(found)}" for name, found in versions.items())
    loads = [load[0] for each in sessions if (load := each.get("load"))]
    busy = (
        f"load before {' to '.join(dict.fromkeys(f'{load:g}' for load in (min(loads), max(loads))))}" if loads else ""
    )
    when = f" {' to '.join(dict.fromkeys([days[0], days[-1]]))}" if days else ""
    return f"Measured{when} on {'; '.join(filter(None, (hardware, known, busy)))}."


# -- sections ----------------------------------------------------------------------------------------------------------


def _throughput(contents: Contents, place: Place, entries: Mapping[Entry, Runs]) -> Iterator[str | Chart]:
    yield f"### {place}"
    table = tables.of_throughput(contents, entries)
    yield table
    if " [2]" in table:
        yield OTHER_SESSION
    if not all(contents.every_input(entry.system) for entry in entries):
        yield SOME_INPUTS
    yield from _notes(contents, entries)
    if absent := _absent(contents, entries):
        yield f"No run here of: {', '.join(absent)}."
    yield from charts.of_throughput(contents, place, entries)


def _notes(contents: Contents, entries: Iterable[Entry]) -> Iterator[str]:
    """Remarks on the numbers from the systems' own files."""
    shown = [contents.systems[name] for name in contents.systems if name in {entry.system for entry in entries}]
    notes = [f"{system.label}: {system.note.rstrip('.')}." for system in shown if system.note]
    if notes:
        yield " ".join(notes)


def _absent(contents: Contents, entries: Iterable[Entry]) -> list[str]:
    present = {entry.system for entry in entries}
    return [system.label for name, system in contents.systems.items() if name not in present]


def _section(
    contents: Contents,
    measure: Measure,
    title: str,
    text: str,
    table: Callable[[Contents], str],
    plots: Callable[[Contents], list[Chart]],
) -> Iterator[str | Chart]:
    lines = contents.of(measure)
    if lines:
        yield from (f"## {title}", text, table(contents))
        if not all(contents.every_input(line.system) for line in lines):
            yield SOME_INPUTS
        yield from plots(contents)


def _no_plots(_: Contents) -> list[Chart]:
    return []


def _inside(contents: Contents) -> Iterator[str]:
    lines = contents.of("table")
    if lines:
        yield "## spark_ckpt alone"
    for line in lines:
        yield _inside_table(line)


def _inside_table(line: Line) -> str:
    if line.failed is not None:
        return f"`benchmarks.inside.{line.system}`: **failed**"
    return str(line.values["markdown"]).strip()


def _described(chart: Chart) -> str:
    """Text for readers who cannot see the plot."""
    axis = ", ".join(panel.axis for panel in chart.panels) if isinstance(chart, Curves) else chart.axis
    return f"{chart.title}; {axis}"
