"""Parts of a record's mean time from input to committed output, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.report import wording
from benchmarks.report.contents import Contents, is_ours
from benchmarks.report.lines import FAULTS, Recorded, means_of
from benchmarks.report.runs import Runs, grouped

PARTS: Mapping[str, str] = {
    "wait": "waiting for a batch",
    "offsets": "Spark asks for the sources' ends",
    "log": "Spark logs the batch",
    "planning": "Spark plans",
    "fetch": "Kafka fetch, parsing, shuffle",
    "operator": "operator",
    "snapshot": "snapshot",
    "staging": "staging",
    "action": "Spark's action: fetch, aggregation, sent to Kafka",
    "barrier": "waiting for the batch with the barrier",
    "decision": "decision",
    "publish": "publish: until the sink begins",
    "publish_ahead": "publish: early send of the rows",
    "publish_init": "publish: init",
    "publish_verify": "publish: verify",
    "publish_send": "publish: send",
    "publish_commit": "publish: commit",
    "visible": "until the reader has it",
    "unexplained": "unexplained",
}
AXIS = "milliseconds of a record from input to committed output, mean; a bar's parts add up to it"


@dataclass(frozen=True)
class Segment:
    """One part of a bar; `number`: its position among all parts, which determines its colour."""

    label: str
    number: int
    value: float


@dataclass(frozen=True)
class Stack:
    """One system. `text` is at the bar's end. `ours`: a variant of spark_ckpt."""

    label: str
    text: str
    segments: tuple[Segment, ...]
    ours: bool

    @property
    def whole(self) -> float:
        """Length of the bar."""
        return sum(segment.value for segment in self.segments)


@dataclass(frozen=True)
class Stacks:
    """Horizontal bars from zero, each of several parts, with a legend."""

    file: str
    title: str
    axis: str
    stacks: tuple[Stack, ...]


Case = tuple[str, str, str, int]


def of_parts(contents: Contents) -> str:
    """A row per part, in a record's order; a column per system, of its middle repeat."""
    cases = _cases(contents)
    head = ("ms of a record: mean (p50, p99)", *(_who(contents, case) for case in cases))
    present = [part for part in PARTS if any(part in means_of(line) for line in cases.values())]
    rows = [(PARTS[part], *(_cell(line, part) for line in cases.values())) for part in present]
    whole = ("**the whole**", *(f"**{wording.number(line.number('mean_ms'))}**" for line in cases.values()))
    inputs = ("inputs measured, never answered", *(_inputs(line) for line in cases.values()))
    faults = (f"{' / '.join(FAULTS)}", *(_faults(line) for line in cases.values()))
    return wording.table(head, [*rows, whole, inputs, faults])


def _cell(line: Recorded, part: str) -> str:
    mean, p50, p99 = (line.number(f"{part}_{value}_ms") for value in ("mean", "p50", "p99"))
    return wording.NONE if mean is None else f"{mean:.0f} ({p50 or 0:.0f}, {p99 or 0:.0f})"


def _inputs(line: Recorded) -> str:
    return f"{line.number('inputs') or 0:,.0f}, {line.number('unanswered') or 0:,.0f}"


def _faults(line: Recorded) -> str:
    return " / ".join(f"{line.number(fault) or 0:,.0f}" for fault in FAULTS)


def _cases(contents: Contents) -> dict[Case, Recorded]:
    """Plain Spark first, then the systems compared with it, each with its middle repeat, since medians of parts would not add up
    to a whole."""
    cases = grouped(contents.of("parts"), lambda line: (line.job, line.workload, line.system, line.interval_ms))
    return {case: _middle(runs) for case, runs in sorted(cases.items(), key=_by_kind) if runs.good}


def _by_kind(case: tuple[Case, Runs]) -> tuple[str, str, bool, str]:
    job, workload, system, _ = case[0]
    return job, workload, is_ours(system), system


def _middle(runs: Runs) -> Recorded:
    ordered = sorted(runs.good, key=lambda line: line.number("mean_ms") or 0.0)
    return ordered[(len(ordered) - 1) // 2]


def _who(contents: Contents, case: Case) -> str:
    _, _, system, interval_ms = case
    by_the_clock = is_ours(system) and not contents.label(system).endswith("an epoch per batch")
    every = f", every {wording.interval(interval_ms)}" if by_the_clock else ""
    return f"{contents.label(system)}{every}{'' if contents.every_input(system) else ' [1]'}"


def charts_of_parts(contents: Contents) -> list[Stacks]:
    """A plot for every job and workload."""
    cases = _cases(contents)
    return [_chart(contents, *place, cases) for place in dict.fromkeys(case[:2] for case in cases)]


def _chart(contents: Contents, job: str, workload: str, cases: Mapping[Case, Recorded]) -> Stacks:
    own = {case: line for case, line in cases.items() if case[:2] == (job, workload)}
    rates = {wording.number(line.number("rate")) for line in own.values()}
    offered = f", {' and '.join(sorted(rates))} records/s offered"
    title = f"Parts of a record's time: {', '.join(filter(None, (job, workload)))}{offered}"
    stacks = tuple(_stack(contents, case, line) for case, line in own.items())
    return Stacks(f"{'-'.join(filter(None, ('parts', job, workload)))}.svg", title, AXIS, stacks)


def _stack(contents: Contents, case: Case, line: Recorded) -> Stack:
    means = means_of(line)
    segments = [
        Segment(label, number, means[part]) for number, (part, label) in enumerate(PARTS.items()) if part in means
    ]
    label = f"{_who(contents, case)}\n{contents.guarantee(case[2])}"
    return Stack(label, wording.milliseconds(line.number("mean_ms")), tuple(segments), is_ours(case[2]))
