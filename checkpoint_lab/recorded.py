"""A simulated run as a file: its scenario, a line for each choice with its moments, and the verdict.

The choices of a trace suffice to run it again. The replay compares its moments with the recorded ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

import checkpoint_lab as sim
from checkpoint_lab.schedules import judge_end
from checkpoint_lab.world import CALM, Scalar
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.machine import ProtocolViolation
from spark_ckpt.errors import TraceInvalid
from spark_ckpt.wording import complaint

Told = tuple[int, str, str, str, int]
"""A moment: step, process, kind, label, number of the message or -1."""

INPUTS_MAX = 1_000
"""Most rows of a source: the simulator keeps a record for each row and each path of it in memory."""


class _RecordedLine(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Scheduled(_RecordedLine):
    """The first line: a `Scenario`, and the moments before the first choice."""

    line: Literal["schedule"] = "schedule"
    format: Literal[1] = 1
    protocol: str
    graph: str
    edges: Sequence[tuple[str, str]] | None = None
    """Edges of a graph that has no name in the simulator."""
    seed: Annotated[int, Field(ge=0)]
    steps: Annotated[int, Field(ge=0)] | None = None
    inputs: Annotated[int, Field(ge=1, le=INPUTS_MAX)]
    crashes: Sequence[tuple[str, int]] = ()
    faults: bool
    interval_ms: Annotated[int, Field(ge=1)] | None = None
    timeout_ms: Annotated[int, Field(ge=1)] | None = None
    options: Mapping[str, str] = Field(default_factory=dict)
    moments: Sequence[Told] = ()

    @classmethod
    def of(cls, scenario: sim.Scenario, moments: Sequence[Told]) -> Scheduled:
        """Return the line of a scenario."""
        return cls(
            protocol=scenario.protocol,
            graph=scenario.graph,
            edges=scenario.own.edges if scenario.own else None,
            seed=scenario.seed,
            steps=scenario.steps,
            inputs=scenario.inputs,
            crashes=[(crash.process, crash.step) for crash in scenario.crashes],
            faults=scenario.faults,
            interval_ms=scenario.interval_ms,
            timeout_ms=scenario.timeout_ms,
            options=scenario.options,
            moments=moments,
        )

    @property
    def scenario(self) -> sim.Scenario:
        """The scenario of the line. Raises `ProtocolViolation` if its graph is invalid."""
        return sim.Scenario(
            self.protocol,
            self.graph,
            self.seed,
            self.steps,
            self.inputs,
            tuple(sim.Crash(process, step) for process, step in self.crashes),
            self.faults,
            Graph(self.graph, tuple(self.edges)) if self.edges else None,
            self.interval_ms,
            self.timeout_ms,
            self.options,
        )


class Chosen(_RecordedLine):
    """One choice and its moments."""

    line: Literal["chosen"] = "chosen"
    choice: Sequence[Scalar]
    moments: Sequence[Told] = ()


class Judged(_RecordedLine):
    """The last line: the complaint of an oracle or a machine, or None."""

    line: Literal["judged"] = "judged"
    error: str | None = None


_LINES: TypeAdapter[Scheduled | Chosen | Judged] = TypeAdapter(
    Annotated[Scheduled | Chosen | Judged, Field(discriminator="line")]
)


@dataclass(frozen=True, slots=True)
class Recording:
    """One simulated run, as it was recorded."""

    begun: Scheduled
    chosen: Sequence[Chosen]
    judged: Judged

    @property
    def trace(self) -> tuple[sim.Choice, ...]:
        """The choices of the run."""
        return tuple(tuple(each.choice) for each in self.chosen)

    @property
    def moments(self) -> tuple[sim.Moment, ...]:
        """Moments of the run, for stories and diagrams."""
        told = [*self.begun.moments, *(each for line in self.chosen for each in line.moments)]
        return tuple(sim.Moment(*each) for each in told)

    def as_text(self) -> str:
        """Return the text of the file: one line of JSON for each line."""
        return "".join(f"{line.model_dump_json()}\n" for line in (self.begun, *self.chosen, self.judged))


def recording(scenario: sim.Scenario, trace: sim.Trace) -> Recording:
    """Run a trace in the scenario's world and judge it as a schedule is judged. Raises `NotOnTheMenu`."""
    world = scenario.world().watch()
    begun = Scheduled.of(scenario, list(_moments_since(world, 0)))
    chosen: list[Chosen] = []
    try:
        for done in _performed(world, trace, chosen):
            chosen.append(done)
    except Exception as complaint:  # noqa: BLE001 - any error of a machine is the run's verdict
        return Recording(begun, chosen, Judged(error=_in_a_line(complaint)))
    return Recording(begun, chosen, Judged())


def _performed(world: sim.World, trace: sim.Trace, done: list[Chosen]) -> Iterator[Chosen]:
    """Perform every choice until the world complains; the failing choice is added to `done` too."""
    calm = rested = False
    for choice in trace:
        # a changed world may not offer a recorded choice
        if choice != CALM and choice not in (*world.possible(), *world.drain_choices(), *world.periodic()):
            raise sim.NotPossible(f"step {world.step}: {choice} is not possible here")
        before, calm = len(world.moments or ()), calm or choice == CALM
        try:
            world.perform(choice)
        except Exception:
            done.append(Chosen(choice=choice, moments=list(_moments_since(world, before))))
            raise
        yield Chosen(choice=choice, moments=list(_moments_since(world, before)))
        # `Driver.drain` judges rest at the first quiescence too
        if calm and not rested and world.quiescent:
            world.judge_rest()
            rested = True
    judge_end(world, trace)


def _moments_since(world: sim.World, since: int) -> Iterator[Told]:
    for each in (world.moments or ())[since:]:
        yield each.step, each.process, each.kind, each.label, each.message


def _in_a_line(error: Exception) -> str:
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first}"


def difference(recorded: Recording) -> str | None:
    """Return the first difference between a recorded run and its replay, or None. Raises `NotOnTheMenu`."""
    again = recording(recorded.begun.scenario, recorded.trace)
    before, after = recorded.as_text().splitlines(), again.as_text().splitlines()
    for number, (line, now) in enumerate(zip(before, after, strict=False), 1):
        if line != now:
            return f"line {number}:\n  recorded {line}\n  replayed {now}"
    return None if len(before) == len(after) else f"line {min(len(before), len(after)) + 1}: one of both ends here"


def read_recording(path: Path) -> Recording:
    """Read a recorded run. Raises `TraceInvalid`, which names the line."""
    try:
        texts = path.read_bytes().splitlines()
    except OSError as error:
        raise TraceInvalid(f"{path}: {error.strerror}", hint="name a file that simulate --record has written") from None
    lines = [_line_of(path, number, text) for number, text in enumerate(texts, 1)]
    # a file of one line has a beginning or a verdict, and not both
    begun, *chosen, judged = lines if len(lines) > 1 else [None, None]
    if not isinstance(begun, Scheduled) or not isinstance(judged, Judged):
        raise TraceInvalid(f"{path} is no simulated run from its beginning to its verdict")
    try:
        # only to check the recorded graph: a scenario cannot be made of an invalid one
        _ = begun.scenario
    except ProtocolViolation as error:
        raise TraceInvalid(f"{path}, line 1: {error.what}") from None
    return Recording(begun, [_chosen(path, number, line) for number, line in enumerate(chosen, 2)], judged)


def _chosen(path: Path, number: int, line: object) -> Chosen:
    if not isinstance(line, Chosen):
        raise TraceInvalid(f"{path}, line {number}: only the first line says how it begins, only the last its verdict")
    return line


def _line_of(path: Path, number: int, text: bytes) -> Scheduled | Chosen | Judged:
    try:
        return _LINES.validate_json(text)
    except ValidationError as error:
        raise TraceInvalid(f"{path}, line {number}: {complaint(error, 'the line')}") from None
