"""Run all measurements: `python -m benchmarks`. Result lines go to benchmarks/results.jsonl, the report to the same folder.

Without options it measures everything, which takes hours. Options select; a new measurement replaces its former lines.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import report
from benchmarks.side_by_side.campaign import MEASURES, NEXMARK, Campaign, Cell, bench, measure_all
from benchmarks.side_by_side.environments import Prepared, prepare
from benchmarks.side_by_side.plan import QUICK, Plan
from benchmarks.side_by_side.results import Results, inside_lines, machine
from benchmarks.side_by_side.workloads import WORKLOADS
from benchmarks.systems import System, is_nexmark, systems

HERE = Path(__file__).parent
JOBS = tuple(sorted(path.stem for path in (HERE / "jobs").glob("[a-z]*.py")))
INSIDE = tuple(sorted(path.stem for path in (HERE / "inside").glob("[a-z]*.py") if "__main__" in path.read_text()))
IN_ROUNDS = frozenset({"epochs", "first_batch", "metrics", "page", "state_size"})
STATEFUL, USUAL = "running_sum", "uniform-10k"

Measure = StrEnum("Measure", [*MEASURES, "inside"])
Job = StrEnum("Job", {job: job.replace("nexmark_", "nexmark-") for job in JOBS})
Workload = StrEnum("Workload", {name.replace("-", "_"): name for name in WORKLOADS})
Contender = StrEnum("Contender", {name.replace("-", "_"): name for name in systems()})
Inside = StrEnum("Inside", INSIDE)


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


def cells(measure: str, jobs: Sequence[str], workloads: Sequence[str]) -> Iterator[Cell]:
    """Selected cells. By default every job on the usual workload, and the stateful job on the other usual workloads, which differ
    in their state only. Latency, parts and recovery measure that job on the usual workload. NEXMark's queries have a measurement
    of their own.
    """
    if measure == "drain":
        yield from (Cell(measure, job, NEXMARK) for job in jobs or JOBS if is_nexmark(job) and not workloads)
        return
    everything = measure == "throughput"
    usual = [each.name for each in WORKLOADS.values() if each.usual]
    for job in jobs or (JOBS if everything else [STATEFUL]):
        for workload in workloads or (usual if everything and job == STATEFUL else [USUAL]):
            if not is_nexmark(job):
                yield Cell(measure, job, workload)


def say(text: str) -> None:
    """Print a line of progress."""
    typer.echo(text)
    sys.stdout.flush()


def run_inside(modules: Sequence[str], rounds: int, results: Results) -> None:
    """Run each module in its own process, so that one cannot warm up or fill the JVM of another."""
    for module in modules:
        say(f"inside {module}")
        command = [sys.executable, "-m", f"benchmarks.inside.{module}"]
        command += ["--rounds", str(rounds)] if module in IN_ROUNDS else []
        done = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            typer.echo(f"inside {module} failed with code {done.returncode}", err=True)
        for line in inside_lines(module, done.stdout, done.returncode):
            results.add(line)


def run_side_by_side(campaign: Campaign, environments: Mapping[str, Prepared], results: Results) -> None:
    """Run all cells on one broker."""
    with bench(campaign.plan, environments, say) as on:
        for line in measure_all(campaign, on):
            results.add(line)


def set_up(contenders: Iterable[System]) -> dict[str, Prepared]:
    """Prepared environments by name: all before the first measurement, since downloads fail more often than systems."""
    environments = {system.environment.name: system.environment for system in contenders}
    prepared = {}
    for name, environment in environments.items():
        say(f"environment {name}")
        prepared[name] = prepare(environment)
    return prepared


def versions(prepared: Iterable[Prepared]) -> dict[str, str]:
    """Versions of the systems that are compared."""
    return dict(sorted(pair for each in prepared for pair in each.versions))


def planned(quick: bool, sizes: Mapping[str, int | None], warm_up_s: int | None) -> Plan:
    """The usual sizes, except those that are given."""
    plan = replace(QUICK if quick else Plan(), **{name: size for name, size in sizes.items() if size is not None})
    return plan if warm_up_s is None else replace(plan, throughput=replace(plan.throughput, warm_up_s=warm_up_s))


@app.command()
def main(
    measure: Annotated[list[Measure] | None, typer.Option(help="Default: all.")] = None,
    job: Annotated[list[Job] | None, typer.Option(help="Default: all, and those inside.")] = None,
    workload: Annotated[list[Workload] | None, typer.Option(help="Default: the usual ones.")] = None,
    system: Annotated[list[Contender] | None, typer.Option(help="Default: all.")] = None,
    only: Annotated[list[Inside] | None, typer.Option(help="Only these measurements of spark_ckpt alone.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Of every measurement, and rounds of those inside.")] = 3,
    records: Annotated[int | None, typer.Option(min=1, help="In each workload's topic, and NEXMark's.")] = None,
    interval_ms: Annotated[int | None, typer.Option(min=1, help="Between commits; latency has its own.")] = None,
    latency_interval_ms: Annotated[int | None, typer.Option(min=1)] = None,
    warm_up_s: Annotated[int | None, typer.Option(min=1, help="Before throughput is measured.")] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, help="Inputs per second where latency and parts are measured.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small and once: does it work? Not among the results.")
    ] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="Only write the report again.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Of results and report. Default: benchmarks/.")] = None,
) -> None:
    """Measure, and write the report."""
    place = folder or (HERE / "quick" if quick else HERE)
    results = Results(place / "results.jsonl")
    if not report_only:
        sizes = {
            "records": records,
            "events": records,
            "interval_ms": interval_ms,
            "latency_interval_ms": latency_interval_ms,
            "rate": rate,
        }
        plan = planned(quick, sizes, warm_up_s)
        every = [each for each in Measure if each != Measure.inside or not job]
        measures = ["inside"] if only else [each.value for each in measure or every]
        chosen = {name: each for name, each in systems().items() if not system or name in system}
        jobs = [each.name for each in job or ()]
        picked = [cell for each in measures if each != "inside" for cell in cells(each, jobs, workload or [])]
        campaign = Campaign(picked, chosen, plan, 1 if quick else repeats)
        environments = set_up(dict.fromkeys(system for _, _, system in campaign.turns()))
        results.add(machine(versions(environments.values())))
        if picked:
            run_side_by_side(campaign, environments, results)
        if "inside" in measures:
            run_inside([each.value for each in only or Inside], 1 if quick else repeats, results)
    report.write(results.path, place)
    say(f"report: {place / 'RESULTS.md'}")


if __name__ == "__main__":
    app()
