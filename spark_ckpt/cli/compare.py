"""`spark-ckpt compare`: every protocol on one workload, one set of clocks and one schedule of failures, side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated

import typer

import spark_ckpt.simulator as sim
from spark_ckpt.cli.options import AsJson, process_at
from spark_ckpt.cli.output import print_json, print_line, print_table
from spark_ckpt.connector import Json
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.protocol.menu import MENU
from spark_ckpt.protocol.recovery import Protocol
from spark_ckpt.wording import counted

COLUMNS = (
    "protocol",
    "control messages",
    "bytes stored",
    "held ms",
    "recovery ms",
    "read again",
    "orphans",
    "lost",
    "shown twice",
    "never shown",
)

Runs = Annotated[int, typer.Option("--runs", min=1, max=1000, help="Seeds; the table shows means.")]
Skew = Annotated[float, typer.Option("--skew-ms", min=0, help="Clocks are off by up to so much, either way.")]
Inputs = Annotated[int, typer.Option("--inputs", min=1, max=1000, help="Rows that each source has, one every 20 ms.")]
GraphName = Annotated[str, typer.Option("--graph", "-g", metavar="NAME", help=f"One of: {', '.join(sim.GRAPHS)}.")]
Crashes = Annotated[
    list[str] | None,
    typer.Option("--crash", metavar="PROCESS@MS", help="Kill a process at a time; may be repeated. a@250 if left out."),
]


def compare(
    graph: GraphName = "diamond",
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first seed.")] = 0,
    runs: Runs = 10,
    inputs: Inputs = 20,
    skew_ms: Skew = 0.0,
    crash: Crashes = None,
    as_json: AsJson = False,
) -> None:
    """Run all protocols through the same failures, in simulated time, and put their costs side by side."""
    if graph not in sim.GRAPHS:
        raise ConfigInvalid(f"no graph {graph!r}", hint=f"there are: {', '.join(sim.GRAPHS)}")
    crashes = sorted(
        _crash(each, sim.GRAPHS[graph].processes) for each in crash or [f"{sim.GRAPHS[graph].processes[1]}@250"]
    )
    able = [each for each in MENU.values() if graph in sim.graphs_of(each.name)]
    rows = [_row(each, graph, range(seed, seed + runs), inputs, skew_ms, crashes) for each in able]
    if as_json:
        print_json([dict(zip(COLUMNS, row, strict=True)) for row in rows])
        return
    killed = ", ".join(f"{process} at {ms:.0f} ms" for ms, process in crashes)
    print_line(
        f"{graph}, {counted(inputs, 'row')} a source, {runs} seeds from {seed}, skew {skew_ms:.0f} ms, killed: {killed}\n"
    )
    print_table(COLUMNS, rows)
    print_line(
        "\nheld: channels held back, ms summed over channels; read again: source rows; orphans, lost: of complete lines;"
        "\nshown twice, never shown: rows at the sinks, as whoever reads them sees it"
    )


def _crash(written: str, processes: Sequence[str]) -> tuple[float, str]:
    process, ms = process_at(written, "MS", "a@250")
    if process not in processes:
        raise ConfigInvalid(f"--crash {written}: no process {process!r}", hint=f"there are: {', '.join(processes)}")
    return float(ms), process


def _row(
    protocol: Protocol, graph: str, seeds: range, inputs: int, skew_ms: float, crashes: Sequence[tuple[float, str]]
) -> list[Json]:
    """One protocol's means over the seeds, in the order of `COLUMNS`."""
    measured = [
        sim.measure(protocol, sim.GRAPHS[graph], seed, skew_ms=skew_ms, inputs=inputs, crashes=crashes)
        for seed in seeds
    ]

    def mean(values: Sequence[float]) -> float:
        return round(statistics.fmean(values), 1) if values else 0.0

    return [
        protocol.name,
        mean([run.counts["protocol messages"] for run in measured]),
        mean([run.counts["bytes written"] for run in measured]),
        mean([run.held_ms for run in measured]),
        mean([ms for run in measured for ms in run.recovery_ms]),
        mean([run.reread for run in measured]),
        mean([sum(len(audit.orphans) for audit in run.audits) for run in measured]),
        mean([sum(len(audit.lost) for audit in run.audits) for run in measured]),
        mean([run.counts["rows shown again"] for run in measured]),
        mean([run.counts["rows not shown"] for run in measured]),
    ]
