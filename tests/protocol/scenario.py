"""Scenarios: regression traces as text, played in the simulator's world of messages.

HOW TO ADD ONE: write `scenarios/T07-short-title.txt`; `test_scenarios` finds it.  Lines that begin with `#` are
comments.  A file is a title, settings and sections:

    T1: partial sums of deficits are zero by accident
    protocol: epochs                          module of checkpoint_protocols with a PROTOCOL
    literal: epochs:ZERO_IS_ENOUGH            module of tests.protocol.literal, and the Protocol in it
    graph: s->a a->k                          edges, or a name from checkpoint_lab.graphs
    inputs: 2                                 per source; also `loops: 1`, `options: {"variant": "clock"}`

    why:
      Prose: seed, erratum, effect of the bug.
    names:
      m1 = s.0>a                              short names for messages (the application's, by lineage)
    steps:
      s reads                                 one step of the world a line; the phrases are below, under STEPS
      a receives m1 from s
      coordinator's checkpoint timer runs out
      crash a
    corrected:
      a capture 1                             events that must happen, in this order, with others in between
      never coordinator complete 1            an event that must not happen at all
    literal ends:
      O2.*s.0>a                               pattern of the violation on the literal variant

After the steps the world runs to its end without faults and is judged (O1 to O17): the corrected machine must pass,
the literal one must fail as the last section says.  An event is written as `process kind label` (or its first words),
as in `MessageWorld.moments`: read, receive, deliver, drop, capture, stored, timer, crash, restore, publish, and every
`Note`.  A step that is not possible ends the run with an error: a literal variant may fail in this way.  New phrases:
`@step(pattern)`.

Other worlds have their own phrases: `world: lease`, `world: barrier`, `world: delta-spark` (integration tests).
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checkpoint_lab import Choice, Faults, MessageWorld, NotPossible
from checkpoint_lab.scripted import GRAPHS
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Protocol, ProtocolSettings
from checkpoint_protocols.vocabulary import Envelope

FOLDER = Path(__file__).parent / "scenarios"
SECTIONS = ("why", "names", "steps", "corrected", "literal", "literal ends")
PLENTY = Faults(99, 99, 99, 99, 99, 99, 99)
STEPS_MAX = 5_000
ROUNDS = 2
"""Rounds of periodic timers after the steps, for events that wait for one more checkpoint."""


# -- the file ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """A scenario file. `settings` are its `key: value` lines, `sections` its indented lines."""

    name: str
    title: str
    settings: dict[str, str]
    sections: dict[str, list[str]] = field(default_factory=dict)

    @property
    def protocol(self) -> Protocol:
        """The corrected protocol."""
        return MENU[self.settings["protocol"].replace("_", "-")]

    @property
    def literal(self) -> Protocol:
        """The literal variant: the protocol as its source prints it."""
        module, _, name = self.settings["literal"].partition(":")
        found = getattr(importlib.import_module(f"tests.protocol.literal.{module.replace('-', '_')}"), name)
        assert isinstance(found, Protocol), f"{module}.{name} is no Protocol"
        return found

    @property
    def graph(self) -> Graph:
        """The graph of the file's edges."""
        text = self.settings["graph"]
        if text in GRAPHS:
            return GRAPHS[text]
        return Graph(self.name, tuple(_pair(edge, "->") for edge in text.split()))

    @property
    def names(self) -> dict[str, str]:
        """Short names of messages."""
        return dict(_pair(line, "=") for line in self.sections.get("names", ()))

    def world(self, protocol: Protocol) -> MessageWorld:
        """A new world with the file's settings."""
        options = json.loads(self.settings.get("options", "{}"))
        world = MessageWorld(
            protocol,
            self.graph,
            PLENTY,
            int(self.settings.get("inputs", "2")),
            int(self.settings.get("loops", "1")),
            ProtocolSettings(options=options),
        )
        world.moments = []
        return world


def _pair(text: str, sign: str) -> tuple[str, str]:
    left, _, right = text.partition(sign)
    return left.strip(), right.strip()


def read(path: Path) -> Scenario:
    """Parse a file. Raises `ValueError` at a line that is neither setting nor section."""
    lines = [line.rstrip() for line in path.read_text().splitlines()]
    lines = [line for line in lines if line and not line.lstrip().startswith("#")]
    scenario = Scenario(path.stem, lines[0], {})
    section: list[str] | None = None
    for line in lines[1:]:
        if line.startswith(" ") and section is not None:
            section.append(line.strip())
            continue
        key, colon, value = line.partition(":")
        if not colon or (not value and key not in SECTIONS):
            raise ValueError(f"{path.name}: neither a setting nor one of the sections {SECTIONS}: {line}")
        section = None if value else scenario.sections.setdefault(key, [])
        if value:
            scenario.settings[key] = value.strip()
    return scenario


def scenarios(world: str = "messages") -> list[Scenario]:
    """All files of a world, by name; a file without a world is of the world of messages."""
    found = [read(path) for path in sorted(FOLDER.glob("T*.txt"))]
    return [scenario for scenario in found if scenario.settings.get("world", "messages") == world]


# -- the play ----------------------------------------------------------------------------------------------------------


class Stage:
    """A world and the short names of its messages."""

    def __init__(self, scenario: Scenario, protocol: Protocol) -> None:
        self.world = scenario.world(protocol)
        self.names = scenario.names

    def do(self, *choice: str | int) -> None:
        """Make one choice. Raises `NotPossible`."""
        if choice not in self.world.possible():
            raise NotPossible(f"{choice} is not possible; possible are {self.world.choices()}")
        self.world.do(choice)

    def settle(self, slow: Sequence[str] = ()) -> None:
        """Do all possible work in order, except that of the `slow` ones; no timers."""
        for _ in range(STEPS_MAX):
            choices = [choice for choice in self.world.choices() if not _waits(choice, slow)]
            if not choices:
                return
            self.world.do(choices[0])
        raise AssertionError("no end")

    def end(self) -> None:
        """Run to the end without faults and with some more checkpoints, and judge."""
        self.world.calm()
        for _ in range(ROUNDS):
            self._drain()
            for choice in self.world.periodic():
                self.world.do(choice)
        self._drain()
        self.world.judge()
        self.world.judge_rounds()

    def happened(self) -> list[str]:
        """All events, one line each, without the digests of ordered applications."""
        lines = [f"{each.process} {each.kind} {each.label}".strip() for each in self.world.moments or ()]
        return [re.sub(r"#[0-9a-f]{8}\b", "", line) for line in lines]

    def message(self, channel: str, what: str) -> int:
        """Position of a message on the channel, by a short name, a lineage, or a kind and an optional number."""
        wanted = self.names.get(what, what)
        network = self.world.network
        queue = network.queues.get(channel, network.controls.get(channel, ()))  # type: ignore[call-overload]
        for position, item in enumerate(queue):
            if _is(item.message, wanted):
                return position
        raise NotPossible(f"there is no {wanted} on {channel}, but {[str(item.message) for item in queue]}")

    def write(self, process: str, what: str) -> int:
        """Position of a write in progress, by a table and an optional number."""
        table, *number = what.split()
        writes = self.world.processes[ProcessId(process)].writes
        for position, write in enumerate(writes):
            if write.key[0] == table and (not number or int(write.key[1]) == int(number[0])):
                return position
        raise NotPossible(f"{process} is not storing {what}, but {[write.key for write in writes]}")

    def timer(self, process: str, name: str) -> int:
        """Position of the oldest timer of that name."""
        timers = self.world.processes[ProcessId(process)].timers
        for position, timer in enumerate(timers):
            if timer.setting.name.split()[0] == name:
                return position
        raise NotPossible(f"{process} has no timer {name}, but {[timer.setting.name for timer in timers]}")

    def _drain(self) -> None:
        for _ in range(STEPS_MAX):
            choices = self.world.drain_choices()
            if not choices:
                return
            self.world.do(choices[0])
        raise AssertionError("O10: no end")


def _is(message: Envelope, wanted: str) -> bool:
    if message.kind == APP:
        return str(message.body).partition("#")[0] == wanted
    return wanted in (message.kind, f"{message.kind} {message.index}")


def _waits(choice: Choice, slow: Sequence[str]) -> bool:
    """The choice is slow: `a` names writes of a, `s->a` the channel, `s` reads of s."""
    return str(choice[1]) in slow if len(choice) > 1 else False


Phrase = Callable[..., None]
STEPS: dict[str, Phrase] = {}
"""Pattern of a step to its function; groups of the pattern are the arguments."""


def step(pattern: str) -> Callable[[Phrase], Phrase]:
    """Add a phrase."""

    def add(phrase: Phrase) -> Phrase:
        STEPS[pattern] = phrase
        return phrase

    return add


def perform(stage: Stage, line: str) -> None:
    """Perform one line of `steps`. Raises `ValueError` for an unknown phrase, `NotPossible`, or the world's violation."""
    for pattern, phrase in STEPS.items():
        match = re.fullmatch(pattern, line)
        if match:
            try:
                phrase(stage, *match.groups())
            except NotPossible as no:
                raise NotPossible(f"{line}: {no}") from no
            return
    raise ValueError(f"no such phrase: {line!r}; there are {list(STEPS)}")


def play(scenario: Scenario, protocol: Protocol) -> Stage:
    """Play the steps, the end and the verdict. Raises the world's violation."""
    stage = Stage(scenario, protocol)
    for line in scenario.sections["steps"]:
        perform(stage, line)
    stage.end()
    return stage


def missing(happened: Sequence[str], wanted: Sequence[str]) -> Iterator[str]:
    """Lines of `corrected` that do not hold. A line is the beginning of an event, in whole words."""
    rest = iter(happened)
    for line in wanted:
        if line.startswith("never "):
            if any(_begins(each, line.removeprefix("never ")) for each in happened):
                yield f"it happened: {line}"
        elif not any(_begins(each, line) for each in rest):
            yield f"it did not happen, or not in this order: {line}"


def _begins(happening: str, line: str) -> bool:
    return f"{happening} ".startswith(f"{line} ")


# -- phrases -----------------------------------------------------------------------------------------------------------


@step(r"(\w+) reads(?: (\d+) times)?")
def _read(stage: Stage, process: str, times: str | None) -> None:
    for _ in range(int(times or 1)):
        stage.do("read", process)


@step(r"(\w+) receives (.+) from (\w+)")
def _receive(stage: Stage, process: str, what: str, source: str) -> None:
    """Receive on the graph's channel if there is one, else on the control channel."""
    channel = f"{source}->{process}"
    if channel not in stage.world.network.queues:
        channel = f"{source}=>{process}"
    stage.do("deliver", channel, stage.message(channel, what))


@step(r"(\w+) replays")
def _replay(stage: Stage, process: str) -> None:
    stage.do("replay", process)


@step(r"(\w+) stores (.+)")
def _store(stage: Stage, process: str, what: str) -> None:
    stage.do("stored", process, stage.write(process, what), "ok")


@step(r"(\w+) fails to store (.+)")
def _fail(stage: Stage, process: str, what: str) -> None:
    stage.do("stored", process, stage.write(process, what), "failed")


@step(r"(\w+) shows")
def _show(stage: Stage, process: str) -> None:
    stage.do("publish", process)


@step(r"(\w+)'s (\w+) timer runs out")
def _run_out(stage: Stage, process: str, name: str) -> None:
    stage.do("timer", process, stage.timer(process, name))


@step(r"(crash|pause|resume) (\w+)")
def _fault(stage: Stage, what: str, process: str) -> None:
    stage.do(what, process)


@step(r"recover")
def _recover(stage: Stage) -> None:
    """Plan and fence; then each process restores its part, in order."""
    stage.do("recover")
    for process in stage.world.everybody:
        if ("restore", process.name) in stage.world.choices():
            stage.do("restore", process.name)


@step(r"plan")
def _plan(stage: Stage) -> None:
    stage.do("recover")


@step(r"restore (\w+)")
def _restore(stage: Stage, process: str) -> None:
    stage.do("restore", process)


@step(r"settle(?:, but (.+) (?:is|are) slow)?")
def _settle(stage: Stage, slow: str | None) -> None:
    """For `settle, but a s->k are slow`: writes and reads of a wait, and so does that channel."""
    stage.settle((slow or "").split())
