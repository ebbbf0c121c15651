"""All measurements of one run: every system once, in turn, then again, so that a change of the machine affects all systems."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp

from confluent_kafka import KafkaException

from benchmarks.nexmark import answers
from benchmarks.nexmark.events import Events, events
from benchmarks.report.lines import Line
from benchmarks.side_by_side import drain, latency, parts, recovery, throughput
from benchmarks.side_by_side.environments import Prepared
from benchmarks.side_by_side.plan import Plan
from benchmarks.side_by_side.topics import Topics
from benchmarks.side_by_side.trial import Failed, Subject
from benchmarks.side_by_side.workloads import WORKLOADS, Expectations, Inputs
from benchmarks.systems import System, job_module
from integration_tests.broker import running_broker

# Kafka's own defaults for its JVM: the tests' small one would be the bottleneck of every pipeline.
BROKER_FLAGS = ("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
NEXMARK = "nexmark"
BROKER_PROPERTIES = {"log.segment.delete.delay.ms": "1000", "log.retention.ms": "-1"}


@dataclass(frozen=True)
class Cell:
    """A measurement on a job and a workload, of every system that has the job."""

    measure: str
    job: str
    workload: str


@dataclass(frozen=True)
class Campaign:
    """The cells, systems and sizes of one run."""

    cells: Sequence[Cell]
    systems: Mapping[str, System]
    plan: Plan
    repeats: int

    def turns(self) -> Iterator[tuple[int, Cell, System]]:
        """Repeats are the outermost loop."""
        for repeat in range(self.repeats):
            for cell in self.cells:
                for system in self.systems.values():
                    if hasattr(job_module(cell.job), system.hook) and is_for(system, cell.measure):
                        yield repeat, cell, system


def is_for(system: System, measure: str) -> bool:
    """Some systems have few measures only; parts need a system that records them."""
    return measure in (system.measures or [measure]) and (system.tells or measure != "parts")


@dataclass
class Bench:
    """The broker's topics, filled at their first use, and the environments. `folder` holds all files that are written meanwhile."""

    topics: Topics
    environments: Mapping[str, Prepared]
    folder: Path
    plan: Plan
    say: Callable[[str], None]
    _sources: dict[str, tuple[str, Inputs]] = field(default_factory=dict)
    filled_events: tuple[str, Events] | None = None

    @cached_property
    def expectations(self) -> Expectations:
        """Expectations on disk, since several of them are gigabytes."""
        return Expectations(self.folder)

    def source(self, workload: str) -> tuple[str, Inputs]:
        """The workload's topic, filled, and its records."""
        if workload not in self._sources:
            inputs = WORKLOADS[workload].inputs(self.plan.records)
            self.say(f"topic {workload}: {len(inputs):,} records")
            topic = self.topics.create(workload)
            self.topics.fill(topic, inputs.records())
            self._sources[workload] = topic, inputs
        return self._sources[workload]

    def events(self) -> tuple[str, Events]:
        """NEXMark's topic, filled, and its events."""
        if self.filled_events is None:
            made = events(self.plan.events)
            self.say(f"topic {NEXMARK}: {len(made):,} events")
            topic = self.topics.create(NEXMARK)
            self.topics.fill_in_turn(topic, made.values())
            self.filled_events = topic, made
        return self.filled_events

    def query(self, cell: Cell, system: System) -> Subject:
        """One of NEXMark's queries on the filled topic."""
        source, made = self.events()
        expected = answers.expected(cell.job, made)
        prepared = self.environments[system.environment.name]
        return Subject(system, prepared, cell.job, source, made, expected, self.plan.interval_ms)

    def subject(self, cell: Cell, system: System) -> Subject:
        """A job on the filled topic."""
        source, inputs = self.source(cell.workload)
        expected = self.expectations.of(cell.job, cell.workload, inputs)
        return Subject(
            system,
            self.environments[system.environment.name],
            cell.job,
            source,
            inputs,
            expected,
            self.plan.interval_ms,
            busy=WORKLOADS[cell.workload].busy,
        )

    @contextmanager
    def paced_subject(self, cell: Cell, system: System) -> Iterator[Subject]:
        """A job on a new topic, which is deleted afterwards."""
        inputs = WORKLOADS[cell.workload].inputs(self.plan.paced_records)
        expected = self.expectations.of(cell.job, f"{cell.workload}-paced", inputs)
        prepared = self.environments[system.environment.name]
        source = self.topics.create("paced")
        try:
            yield Subject(system, prepared, cell.job, source, inputs, expected, self.plan.latency_interval_ms)
        finally:
            self.topics.delete(source)


@contextmanager
def bench(plan: Plan, environments: Mapping[str, Prepared], say: Callable[[str], None]) -> Iterator[Bench]:
    """Start a broker with its data in a temporary folder."""
    folder = Path(mkdtemp(prefix="benchmarks-"))
    try:
        with running_broker(folder / "broker", BROKER_PROPERTIES, flags=BROKER_FLAGS) as broker:
            yield Bench(Topics(broker.servers), environments, folder, plan, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure_all(campaign: Campaign, on: Bench) -> Iterator[Line]:
    """One line per turn. The failure of a system is a line too, and the others continue."""
    for repeat, cell, system in campaign.turns():
        started = time.monotonic()
        line = _measured(campaign, on, repeat, cell, system)
        shown = {name: f"{value:,.4g}" if isinstance(value, float) else value for name, value in line.values.items()}
        facts = ", ".join(f"{name} {value}" for name, value in shown.items())
        on.say(
            f"{repeat} {cell.measure} {cell.job} {cell.workload} {system.name}: {facts} ({time.monotonic() - started:.0f} s)"
        )
        yield line


def _measured(campaign: Campaign, on: Bench, repeat: int, cell: Cell, system: System) -> Line:
    values: dict[str, float | str]
    try:
        values = dict(MEASURES[cell.measure](on, cell, system, repeat))
    except (Failed, KafkaException, TimeoutError) as failure:
        print(failure, getattr(failure, "log", ""), sep="\n", file=sys.stderr, flush=True)
        values = {"failed": str(failure)} | ({"rate": campaign.plan.rate} if cell.measure in PACED else {})
    plan = campaign.plan
    return Line(
        measure=cell.measure,
        job=cell.job,
        workload=cell.workload,
        system=system.name,
        interval_ms=plan.latency_interval_ms if cell.measure in PACED else plan.interval_ms,
        repeat=repeat,
        values=values,
    )


def _throughput(on: Bench, cell: Cell, system: System, _: int) -> dict[str, float]:
    return throughput.measure(on.subject(cell, system), on.topics, on.folder, on.plan.throughput)


def _latency(on: Bench, cell: Cell, system: System, _: int) -> dict[str, float]:
    with on.paced_subject(cell, system) as subject:
        return latency.measure(subject, cell.workload, on.topics, on.folder, on.plan)


def _parts(on: Bench, cell: Cell, system: System, _: int) -> dict[str, float]:
    with on.paced_subject(cell, system) as subject:
        return parts.measure(subject, cell.workload, on.topics, on.folder, on.plan)


def _recovery(on: Bench, cell: Cell, system: System, repeat: int) -> dict[str, float]:
    return recovery.measure(on.subject(cell, system), on.topics, on.folder, repeat)


def _drain(on: Bench, cell: Cell, system: System, _: int) -> dict[str, float]:
    return drain.measure(on.query(cell, system), on.topics, on.folder)


MEASURES = {
    "throughput": _throughput, "latency": _latency, "parts": _parts, "recovery": _recovery, "drain": _drain,
}  # fmt: skip
PACED = ("latency", "parts")
"""Measures at a rate that all systems keep up with; their interval is different."""
