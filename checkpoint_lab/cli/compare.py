"""`spark-ckpt compare`: all protocols on one workload, one set of clocks and one schedule of failures, in one table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

import checkpoint_lab as sim
from checkpoint_lab.cli.simulate import chosen_graph
from checkpoint_protocols.graph import COORDINATOR, Graph
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.recovery import ProtocolSettings
from spark_ckpt.cli.options import AsJson, Interval, ProtocolOptions, Timeout, pairs, process_at
from spark_ckpt.cli.output import print_json, print_line, print_table
from spark_ckpt.connector import Json
from spark_ckpt.errors import ConfigInvalid, ProtocolCondemned
from spark_ckpt.wording import counted

COLUMNS = (
    "protocol",
    "control messages",
    "log bytes",
    "state bytes",
    "held ms",
    "recovery ms",
    "read again",
    "shown after ms",
)

MEANINGS = """
log bytes: the protocol's records, and messages that it keeps; state bytes: a process that is neither a source nor the
coordinator stores {state_bytes:,} bytes with each checkpoint of it, and a sink the rows that it has not shown; held: channels held
back, ms summed over channels; read again: source rows; shown after: from the first reading of an input to its row at a sink"""

JUDGED = """
Every run of a sound protocol was judged: its lines, its effect, and that its sinks show each row once."""

UNSOUND = frozenset(name for name, protocol in MENU.items() if not protocol.sound)

Runs = Annotated[int, typer.Option("--runs", min=1, max=1000, help="Run so many seeds; the table shows means.")]
Skew = Annotated[float, typer.Option("--skew-ms", min=0, help="Let clocks be off by up to so many ms, either way.")]
Inputs = Annotated[
    int, typer.Option("--inputs", min=1, max=1000, help="Give each source so many rows, one every 20 ms.")
]
GraphName = Annotated[
    str, typer.Option("--graph", "-g", metavar="NAME", help=f"One of: {', '.join(sim.GRAPHS)}; or FILE.json.")
]
Crashes = Annotated[
    list[str] | None,
    typer.Option("--crash", metavar="PROCESS@MS", help="Kill a process at a time; may be repeated. a@250 if left out."),
]


StateBytes = Annotated[int, typer.Option("--state-bytes", min=0, help="Application state of one process.")]


@dataclass(frozen=True)
class Workload:
    """The workload of every compared protocol."""

    graph: Graph
    seeds: range
    inputs: int
    skew_ms: float
    crashes: Sequence[tuple[float, str]]
    state_bytes: int
    times: ProtocolSettings


def compare(
    graph: GraphName = "diamond",
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first seed.")] = 0,
    runs: Runs = 10,
    inputs: Inputs = 20,
    skew_ms: Skew = 0.0,
    crash: Crashes = None,
    state_bytes: StateBytes = 1_000,
    interval_ms: Interval = None,
    timeout_ms: Timeout = None,
    option: ProtocolOptions = None,
    as_json: AsJson = False,
) -> None:
    """Run all protocols through the same failures, in simulated time, and put their costs side by side."""
    chosen = chosen_graph(graph)
    crashes = sorted(_crash(each, chosen.processes) for each in crash or [f"{chosen.processes[1]}@250"])
    load = Workload(
        chosen, range(seed, seed + runs), inputs, skew_ms, crashes, state_bytes, _times(interval_ms, timeout_ms)
    )
    options = _options(pairs(option, "--option"))
    measured = {
        name: [_measure(name, load, number, options.get(name, {})) for number in load.seeds]
        for name, protocol in MENU.items()
        if not (chosen.back_edges and protocol.needs.acyclic)
    }
    if as_json:
        print_json([_fields(name, found) for name, found in measured.items()])
    else:
        _print(load, measured)


def _times(interval_ms: int | None, timeout_ms: int | None) -> ProtocolSettings:
    return ProtocolSettings(interval_ms or sim.TIMED.interval_ms, timeout_ms or sim.TIMED.timeout_ms)


def _options(written: Mapping[str, str]) -> dict[str, dict[str, Json]]:
    """Return the options of each protocol that has them. Raises `ConfigInvalid` for an option that no protocol has."""
    known = {name for protocol in MENU.values() for name in protocol.options}
    if unknown := sorted(set(written) - known):
        raise ConfigInvalid(f"no protocol has an option {unknown[0]!r}", hint=f"there are: {', '.join(sorted(known))}")
    try:
        return {
            name: sim.options_of(name, {key: value for key, value in written.items() if key in protocol.options})
            for name, protocol in MENU.items()
        }
    except sim.NotOnTheMenu as error:
        raise ConfigInvalid(error.what, hint=f"there are: {', '.join(error.options)}") from error


def _print(load: Workload, measured: Mapping[str, Sequence[sim.Measurement]]) -> None:
    killed = ", ".join(f"{process} at {ms:.0f} ms" for ms, process in load.crashes)
    print_line(
        f"{load.graph.name}, {counted(load.inputs, 'row')} a source, {counted(len(load.seeds), 'seed')} from "
        f"{load.seeds[0]}, skew {load.skew_ms:.0f} ms, killed: {killed}\n"
    )
    print_table(COLUMNS, [[_rounded(each) for each in _row(name, found)] for name, found in measured.items()])
    print_line(MEANINGS.format(state_bytes=load.state_bytes))
    print_line(JUDGED)
    for name, found in measured.items():
        if name in UNSOUND:
            print_line("\n" + _verdict(name, found))


def _crash(written: str, processes: Sequence[str]) -> tuple[float, str]:
    process, ms = process_at(written, "MS", "a@250")
    if process not in (*processes, COORDINATOR):
        there = ", ".join((*processes, COORDINATOR))
        raise ConfigInvalid(f"--crash {written}: no process {process!r}", hint=f"there are: {there}")
    return float(ms), process


def _measure(name: str, load: Workload, seed: int, options: Mapping[str, Json]) -> sim.Measurement:
    """Run one protocol once. A violation by a sound protocol is a bug of this project and is reported as such."""
    crashes = [each for each in load.crashes if each[1] != COORDINATOR or MENU[name].coordinator]
    try:
        return sim.measure(
            MENU[name],
            load.graph,
            seed,
            skew_ms=load.skew_ms,
            inputs=load.inputs,
            settings=replace(load.times, options=options),
            crashes=crashes,
            state_bytes=load.state_bytes,
        )
    except (sim.Violation, ProtocolViolation) as complaint:
        what = str(complaint).splitlines()[0]
        where = f"{name} on {load.graph.name}, seed {seed}"
        # times chosen by the user may be too short for any progress; that is no bug
        if isinstance(complaint, sim.NoEnd) and load.times != _times(None, None):
            hint = "take a longer --interval-ms or --timeout-ms"
            raise ConfigInvalid(f"{where}, makes no progress with these times: {what}", hint=hint) from complaint
        raise ProtocolCondemned(f"{where}: {what}", hint="report it with this line, it is a bug") from complaint


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 1) if values else 0.0


def _rounded(value: Json) -> Json:
    """Return a mean of ten or more as a whole number: the seeds differ by more than its decimals."""
    return round(value) if isinstance(value, float) and (value >= 10 or value == 0) else value


def _row(name: str, measured: Sequence[sim.Measurement]) -> list[Json]:
    """Return one protocol's means over the seeds, in the order of `COLUMNS`."""
    return [
        name,
        _mean([run.counts["protocol messages"] for run in measured]),
        _mean([run.counts["bytes written"] for run in measured]),
        _mean([run.state_bytes for run in measured]),
        _mean([run.held_ms for run in measured]),
        _mean([ms for run in measured for ms in run.recovery_ms]),
        _mean([run.reread for run in measured]),
        _mean([ms for run in measured for ms in run.shown_ms]),
    ]


def _fields(name: str, measured: Sequence[sim.Measurement]) -> dict[str, Json]:
    row = dict(zip(COLUMNS, _row(name, measured), strict=True))
    return row | (_wrong(measured) if name in UNSOUND else {})


def _wrong(measured: Sequence[sim.Measurement]) -> dict[str, Json]:
    """Return the violations of an unsound protocol, per run."""
    return {
        "orphans": _mean([sum(len(audit.orphans) for audit in run.audits) for run in measured]),
        "lost": _mean([sum(len(audit.lost) for audit in run.audits) for run in measured]),
        "shown twice": _mean([run.counts["rows shown again"] for run in measured]),
        "never shown": _mean([run.counts["rows not shown"] for run in measured]),
        "ended early": sum(bool(run.condemned) for run in measured),
    }


def _verdict(name: str, measured: Sequence[sim.Measurement]) -> str:
    wrong, ended = _wrong(measured), ""
    if wrong["ended early"]:
        ended = f"; {wrong['ended early']} of {len(measured)} runs could not go on and count as far as they came"
    return (
        f"{name} is a counter-example. A run of it has, in the lines that it calls complete and those that it goes back to, "
        f"{wrong['orphans']:g} messages\nreceived and not sent, and {wrong['lost']:g} sent and lost; of its rows its "
        f"sinks show {wrong['shown twice']:g} twice and {wrong['never shown']:g} never{ended}."
    )
