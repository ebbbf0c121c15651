"""`spark-ckpt compare`: all protocols on one workload, one set of clocks and one schedule of failures, in one table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

import checkpoint_lab as sim
from checkpoint_lab.cli.simulate import asked, chosen_graph, refuse_many_ways
from checkpoint_lab.recorded_job import HOPS, RecordedJob, read_job
from checkpoint_lab.timed import LATENCIES
from checkpoint_protocols.graph import COORDINATOR, Graph
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.recovery import ProtocolSettings
from spark_ckpt.cli.options import AsJson, Interval, ProtocolOptions, StorageOptions, Timeout, pairs, process_at
from spark_ckpt.cli.output import print_facts, print_json, print_line, print_table, size
from spark_ckpt.cli.stores import open_stores
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
coordinator stores {state} with each checkpoint of it, and a sink the rows that it has not shown; held: channels held
back, ms summed over channels; read again: source rows; shown after: from the first reading of an input to its row at a sink"""

ASSUMED = """
A tenth of an epoch's rows of a source travels as one message. Recorded: graph, rates, sizes. Assumed: a hop takes as long as a
source's next message, a failure is noticed and mended in a quarter of an epoch, a row has {row_bytes:,.0f} bytes on every hop."""

JUDGED = """
Every run of a sound protocol was judged: its lines, its effect, and that its sinks show each row once."""

GRAPH = "diamond"
STATE_BYTES = 1_000
NEVER = "named crashes that never happened"

UNSOUND = frozenset(name for name, protocol in MENU.items() if not protocol.sound)

Runs = Annotated[int, typer.Option("--runs", min=1, max=1000, help="Run so many seeds; the table shows means.")]
Skew = Annotated[float, typer.Option("--skew-ms", min=0, help="Let clocks be off by up to so many ms, either way.")]
Inputs = Annotated[
    int, typer.Option("--inputs", min=1, max=1000, help="Give each source so many rows, one every 20 ms.")
]
GraphName = Annotated[
    str | None,
    typer.Option(
        "--graph", "-g", metavar="NAME", help=f"One of: {', '.join(sim.GRAPHS)}; or FILE.json. {GRAPH} if left out."
    ),
]
Crashes = Annotated[
    list[str] | None,
    typer.Option("--crash", metavar="PROCESS@MS", help="Kill a process at a time; may be repeated. a@250 if left out."),
]


StateBytes = Annotated[
    int | None,
    typer.Option("--state-bytes", min=0, help=f"Application state of one process. {STATE_BYTES} if left out."),
]
RecordedStore = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="STORE", help="Take graph, rates and sizes from the store of a job or the folder of stages."
    ),
]


@dataclass(frozen=True)
class Workload:
    """The workload of every compared protocol, and by what its figures are multiplied."""

    graph: Graph
    seeds: range
    inputs: int
    skew_ms: float
    crashes: Sequence[tuple[float, str]]
    state_bytes: Callable[[ProcessId], int]
    times: ProtocolSettings
    row_bytes: int | None = None
    """Size of a message. None: its text in the simulator."""
    ms: float = 1.0
    rows: float = 1.0
    latencies: sim.Latencies = LATENCIES


def compare(
    graph: GraphName = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first seed.")] = 0,
    runs: Runs = 10,
    inputs: Inputs = 20,
    skew_ms: Skew = 0.0,
    crash: Crashes = None,
    state_bytes: StateBytes = None,
    interval_ms: Interval = None,
    timeout_ms: Timeout = None,
    option: ProtocolOptions = None,
    store: RecordedStore = None,
    storage_option: StorageOptions = None,
    as_json: AsJson = False,
) -> None:
    """Run all protocols through the same failures, in simulated time, and put their costs side by side."""
    seeds, job, killed = range(seed, seed + runs), None, crash or ()
    if store is None:
        chosen, times = chosen_graph(graph or GRAPH, inputs), _times(interval_ms, timeout_ms)
        held = STATE_BYTES if state_bytes is None else state_bytes
        load = Workload(chosen, seeds, inputs, skew_ms, _crashes(killed, chosen), lambda _: held, times)
        stores_state = f"{held:,} bytes"
    else:
        _refuse_recorded(graph, state_bytes, interval_ms, timeout_ms)
        job = read_job(store, open_stores([store], storage_option), pairs(storage_option, "--storage-option"))
        load = _recorded_workload(job, seeds, inputs, skew_ms, killed)
        stores_state = "its recorded state"
    options = _options(pairs(option, "--option"))
    measured = {
        name: [_measure(name, load, number, options.get(name, {})) for number in load.seeds]
        for name, protocol in MENU.items()
        if not (load.graph.back_edges and protocol.needs.acyclic)
    }
    if as_json:
        print_json([_fields(load, name, found) for name, found in measured.items()])
        return
    if job is not None:
        _print_job(job)
    _print(load, measured, stores_state)
    if job is not None:
        print_line(ASSUMED.format(row_bytes=job.row_bytes))


def _recorded_workload(job: RecordedJob, seeds: range, inputs: int, skew_ms: float, killed: Sequence[str]) -> Workload:
    refuse_many_ways(job.name, job.graph, inputs)
    # 1.25 intervals, as the 250 ms of a run without a store are
    crashes = [(ms / job.ms, name) for ms, name in _crashes(killed, job.graph, 1.25 * job.interval_ms)]
    return Workload(
        job.graph,
        seeds,
        inputs,
        skew_ms / job.ms,
        crashes,
        lambda process: job.state_bytes.get(process, 0),
        sim.TIMED,
        round(job.message_rows * job.row_bytes),
        job.ms,
        job.message_rows,
        HOPS,
    )


def _refuse_recorded(*recorded: object) -> None:
    names = ("--graph", "--state-bytes", "--interval-ms", "--timeout-ms")
    for name, value in zip(names, recorded, strict=True):
        if value is not None:
            raise ConfigInvalid(f"{name} and --store", hint=f"leave one out: the store has recorded what {name} says")


def _print_job(job: RecordedJob) -> None:
    state = ", ".join(f"{name} {size(held)}" for name, held in job.state_bytes.items()) or "none"
    facts = {
        "job": job.name,
        "epochs": f"{job.epochs}, one every {job.interval_ms / 1000:,.1f} s",
        "rows": f"{job.rows:,.0f} of a source in an epoch",
        "state": state,
        "channels": ", ".join(job.graph.channels),
    }
    print_facts(facts)
    print_line()


def _times(interval_ms: int | None, timeout_ms: int | None) -> ProtocolSettings:
    return ProtocolSettings(interval_ms or sim.TIMED.interval_ms, timeout_ms or sim.TIMED.timeout_ms)


def _options(written: Mapping[str, str]) -> dict[str, dict[str, Json]]:
    """Return the options of each protocol that has them. Raises `ConfigInvalid` for an option that no protocol has."""
    known = {name for protocol in MENU.values() for name in protocol.options}
    if unknown := sorted(set(written) - known):
        raise ConfigInvalid(f"no protocol has an option {unknown[0]!r}", hint=f"there are: {', '.join(sorted(known))}")
    return asked(
        lambda: {
            name: sim.options_of(name, {key: value for key, value in written.items() if key in protocol.options})
            for name, protocol in MENU.items()
        }
    )


def _print(load: Workload, measured: Mapping[str, Sequence[sim.Measurement]], stores_state: str) -> None:
    killed = ", ".join(f"{process} at {ms * load.ms:.0f} ms" for ms, process in load.crashes)
    print_line(
        f"{load.graph.name}, {counted(round(load.inputs * load.rows), 'row')} a source, {counted(len(load.seeds), 'seed')} from "
        f"{load.seeds[0]}, skew {load.skew_ms * load.ms:.0f} ms, killed: {killed}\n"
    )
    print_table(COLUMNS, [[_rounded(each) for each in _row(load, name, found)] for name, found in measured.items()])
    if missed := [f"{name} {number:g}" for name, found in measured.items() if (number := _missed(load, found))]:
        print_line(f"\n{NEVER}, a run: {', '.join(missed)}; their process was down, or the protocol has none")
    print_line(MEANINGS.format(state=stores_state))
    print_line(JUDGED)
    for name, found in measured.items():
        if name in UNSOUND:
            print_line("\n" + _verdict(name, found))


def _crashes(written: Sequence[str], graph: Graph, default_ms: float = 250) -> list[tuple[float, str]]:
    """Return the named crashes in order of time; without one, that of a process between sources and sinks."""
    if written:
        return sorted(_crash(each, graph.processes) for each in written)
    inner = [each for each in graph.processes if each not in (*graph.sources, *graph.sinks)]
    return [(default_ms, (inner or graph.sinks)[0])]


def _crash(written: str, processes: Sequence[str]) -> tuple[float, str]:
    process, ms = process_at(written, "MS", "a@250")
    if process not in (*processes, COORDINATOR):
        there = ", ".join((*processes, COORDINATOR))
        raise ConfigInvalid(f"--crash {written}: no process {process!r}", hint=f"there are: {there}")
    return float(ms), process


def _measure(name: str, load: Workload, seed: int, options: Mapping[str, Json]) -> sim.Measurement:
    # a protocol without a coordinator has no process of that name to kill
    crashes = [each for each in load.crashes if each[1] != COORDINATOR or MENU[name].coordinator]
    try:
        return sim.measure(
            MENU[name],
            load.graph,
            seed,
            load.latencies,
            load.skew_ms,
            inputs=load.inputs,
            settings=replace(load.times, options=options),
            crashes=crashes,
        )
    except (sim.Violation, ProtocolViolation) as complaint:
        what = str(complaint).splitlines()[0]
        where = f"{name} on {load.graph.name}, seed {seed}"
        # times chosen by the user may be too short for any progress, or clocks too far apart; that is no bug
        if isinstance(complaint, sim.NoEnd) and (load.skew_ms or load.times != _times(None, None)):
            hint = "take a smaller --skew-ms" if load.skew_ms else "take a longer --interval-ms or --timeout-ms"
            raise ConfigInvalid(f"{where}, makes no progress with these times: {what}", hint=hint) from complaint
        # a sound protocol that an oracle condemns is a bug of this project, and never of the user's workload
        raise ProtocolCondemned(f"{where}: {what}", hint="report it with this line, it is a bug") from complaint


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 1) if values else 0.0


def _rounded(value: Json) -> Json:
    # the seeds differ by more than the decimals of such a mean
    return round(value) if isinstance(value, float) and (value >= 10 or value == 0) else value


def _row(load: Workload, name: str, measured: Sequence[sim.Measurement]) -> list[Json]:
    """Return one protocol's means over the seeds, in the order of `COLUMNS`."""
    kept = load.row_bytes or 0
    return [
        name,
        _mean([run.counts["protocol messages"] for run in measured]),
        _mean([run.counts["bytes written"] + run.size.messages * kept for run in measured]),
        _mean([run.size.bytes(load.state_bytes, load.row_bytes) for run in measured]),
        _mean([run.held_ms * load.ms for run in measured]),
        _mean([ms * load.ms for run in measured for ms in run.recovery_ms]),
        _mean([run.reread * load.rows for run in measured]),
        _mean([ms * load.ms for run in measured for ms in run.shown_ms]),
    ]


def _fields(load: Workload, name: str, measured: Sequence[sim.Measurement]) -> dict[str, Json]:
    row = dict(zip(COLUMNS, _row(load, name, measured), strict=True))
    missed = _missed(load, measured)
    return row | ({NEVER: missed} if missed else {}) | (_wrong(measured) if name in UNSOUND else {})


def _missed(load: Workload, measured: Sequence[sim.Measurement]) -> float:
    """Return the named crashes that met no live process, per run."""
    return _mean([len(load.crashes) - run.counts.get("crash", 0) for run in measured])


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
