"""Scenarios in the lease world: `world: lease`, `rates`, `first_ms`, and the phrases under STEPS.

`literal:` names `LeaseRules` of `tests.protocol.literal`.  A phrase with `if it may` does nothing if the machine has
nothing to do; every other step must be possible.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable

from checkpoint_lab.faults import Faults
from checkpoint_lab.lease_world import LeaseRules, LeaseWorld, Scope
from checkpoint_lab.world import NotPossible
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.messages import LeaseSettings
from tests.protocol.scenario import Scenario, scenarios

PLENTY = Faults(99, 99, 99, 99, 99, 99, 99)
STEPS_MAX = 3_000

Phrase = Callable[..., None]


def lease_scenarios() -> list[Scenario]:
    """Scenarios of the lease world, by name."""
    return scenarios("lease")


def literal_rules(scenario: Scenario) -> LeaseRules:
    """The literal rules: as the source prints them."""
    module, _, name = scenario.settings["literal"].partition(":")
    found = getattr(importlib.import_module(f"tests.protocol.literal.{module}"), name)
    assert isinstance(found, LeaseRules)
    return found


class LeaseStage:
    """A lease world and its phrases."""

    def __init__(self, scenario: Scenario, rules: LeaseRules) -> None:
        rates = {name: int(rate) for name, rate in (pair.split("=") for pair in scenario.settings["rates"].split())}
        first_ms = int(scenario.settings["first_ms"])
        settings = LeaseSettings(least_ms=10, first_ms=first_ms, most_ms=4 * first_ms, margin_ms=1, fresh_ms=15)
        self.world = LeaseWorld(Scope(rates, settings=settings, advances=(100, 1)), PLENTY, rules)
        self.world.moments = []

    def do(self, *choice: str | int) -> None:
        """Make one choice. Raises `NotPossible`."""
        if choice not in self.world.possible():
            raise NotPossible(f"{choice} is not possible; possible are {self.world.possible()}")
        self.world.do(choice)

    def maybe(self, *choice: str | int) -> bool:
        """Make one choice if it is possible; returns whether it was."""
        possible = choice in self.world.possible()
        if possible:
            self.world.do(choice)
        return possible

    def happened(self) -> list[str]:
        """All events, one line each."""
        return [f"{each.process} {each.kind} {each.label}".strip() for each in self.world.moments or ()]

    def end(self) -> None:
        """Run without faults until every process has published, and judge."""
        self.world.calm()
        for step in range(STEPS_MAX):
            choices = self.world.drain_choices()
            if not choices:
                self.world.judge()
                return
            self.world.do(choices[step % len(choices)])
        raise AssertionError("O10: no end")


def play(scenario: Scenario, rules: LeaseRules) -> LeaseStage:
    """Play the steps, the end and the verdict. Raises the world's violation."""
    stage = LeaseStage(scenario, rules)
    for line in scenario.sections["steps"]:
        perform(stage, line)
    stage.end()
    return stage


def perform(stage: LeaseStage, line: str) -> None:
    """One line of `steps`."""
    for pattern, phrase in STEPS.items():
        match = re.fullmatch(pattern, line)
        if match:
            phrase(stage, *match.groups())
            return
    raise ValueError(f"no such phrase: {line!r}; there are {list(STEPS)}")


def _single(kind: str) -> Phrase:
    def phrase(stage: LeaseStage, name: str) -> None:
        stage.do(kind, name)

    return phrase


def _maybe_elected(stage: LeaseStage, name: str) -> None:
    stage.maybe("elect", name)


def _report(stage: LeaseStage, name: str, primary: str) -> None:
    stage.do("report", name)
    assert stage.world.leader == primary
    stage.do("hear", name)


def _issue(stage: LeaseStage, primary: str, holder: str, maybe: str | None = None) -> None:
    done = stage.maybe("tick", primary, holder) if maybe else stage.do("tick", primary, holder)
    if done is not False:
        stage.do("append", primary)


def _execute(stage: LeaseStage, name: str, upto: str) -> None:
    """Execute entries of the log, up to its end: the corrected primary may have appended fewer."""
    node = stage.world.nodes[ProcessId(name)]
    while node.replica and node.replica.applied < min(int(upto), len(stage.world.log)):
        stage.do("execute", name)


def _pass(stage: LeaseStage, ms: str) -> None:
    """Advance the time; timers that run out in it, or at its end, do so."""
    world = stage.world
    end = world.now + int(ms) * world.unit
    while True:
        dues = {node.due: name for name, node in world.nodes.items() if node.awake and node.due is not None}
        next_due = min(dues, default=end + 1)
        fitting = [at_once for at_once in (100, 1) if world.now + at_once * world.unit <= min(end, next_due)]
        if fitting:
            stage.do("advance", fitting[0])
        elif next_due <= end:
            stage.do("elapse", dues[next_due])
        elif world.now < end:
            stage.do("advance", 1)  # a timer has left a fraction of a millisecond
        else:
            return


STEPS: dict[str, Phrase] = {
    r"(\w+) is elected": _single("elect"),
    r"(\w+) is elected if it may": _maybe_elected,
    r"(\w+) reports to (\w+)": _report,
    r"(\w+) issues to (\w+)": _issue,
    r"(\w+) issues to (\w+) (if it may)": _issue,
    r"(\w+) executes up to (\d+)": _execute,
    r"(\w+) dies": _single("crash"),
    r"(\w+) recovers": _single("recover"),
    r"(\w+) starts": _single("start"),
    r"(\d+) ms pass": _pass,
}
"""Pattern of a step to its function; groups of the pattern are the arguments."""
