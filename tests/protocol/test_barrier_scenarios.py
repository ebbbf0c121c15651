"""Regression traces of the barrier machines: the shipped ones pass, the literal ones fail as the scenario says."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable

import pytest

from checkpoint_lab import BARRIER_GRAPHS, Choice, Violation
from checkpoint_lab.barrier_world import ROLES, BarrierWorld, Roles
from tests.protocol.scenario import Scenario, missing, scenarios

each_scenario = pytest.mark.parametrize("scenario", scenarios("barrier"), ids=lambda scenario: scenario.name)


def settle(world: BarrierWorld, withheld: str = "") -> None:
    """One barrier and all that follows from it, first things first, without the stores that are withheld."""
    while choices := _choices(world, withheld):
        world.do(choices[0])


def _choices(world: BarrierWorld, withheld: str) -> list[Choice]:
    ordinary = [choice for choice in world.choices() if choice[0] != "stored" or world.stores[choice[1]][0] != withheld]
    begun = any(coordinator.injected for coordinator in world.coordinators)
    return ordinary or ([] if begun else list(world.timers()[:1]))


STEPS: dict[str, Callable[..., None]] = {
    r"everything happens, but no (\w+) is written": settle,
    r"crash coordinator": lambda world: world.do(("crash coordinator", 0)),
    r"settle": settle,
}
"""Pattern of a step to what it does; groups of the pattern are its arguments."""


def play(scenario: Scenario, roles: Roles) -> list[str]:
    """The steps; everything that happened, one line each."""
    world = BarrierWorld(BARRIER_GRAPHS[scenario.settings["graph"]], roles)
    world.moments = []
    for line in scenario.sections["steps"]:
        (match,) = [(act, found) for pattern, act in STEPS.items() if (found := re.fullmatch(pattern, line))]
        match[0](world, *match[1].groups())
    return [f"{each.process} {each.kind} {each.label}".strip() for each in world.moments]


@each_scenario
def test_the_shipped_machines_do_what_the_scenario_says(scenario: Scenario) -> None:
    happened = play(scenario, ROLES)

    assert list(missing(happened, scenario.sections["corrected"])) == [], "\n".join(happened)


@each_scenario
def test_the_literal_machine_fails_as_the_scenario_says(scenario: Scenario) -> None:
    module, _, name = scenario.settings["literal"].partition(":")
    roles = getattr(importlib.import_module(f"tests.protocol.literal.{module}"), name)

    with pytest.raises(Violation) as failed:
        play(scenario, roles)

    (pattern,) = scenario.sections["literal ends"]
    assert re.search(pattern, str(failed.value)), str(failed.value)
