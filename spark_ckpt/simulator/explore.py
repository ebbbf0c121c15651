"""Small scopes, all of them: every order of everything that can happen, each state visited once.

The scope is bounded by the world (inputs, budgets of faults) and by how many timers may run out; what comes back
for ever would never end.  From every end the world is driven on calmly and judged.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from spark_ckpt.simulator.copying import Frozen
from spark_ckpt.simulator.violations import NoEnd, Violation
from spark_ckpt.simulator.world import CALM, Choice, World

STATES_MAX = 100_000
CALM_STEPS_MAX = 5_000


class ScopeTooLarge(Exception):
    """More states than were allowed: make the scope smaller, or the bound larger on purpose."""


@dataclass(frozen=True)
class Exploration:
    """What was seen: distinct states, transitions between them, states without a successor."""

    states: int
    transitions: int
    ends: int


@dataclass(frozen=True)
class _Node:
    frozen: Frozen[World]
    timers_left: int
    trace: tuple[Choice, ...]


def explore(world: World, states_max: int = STATES_MAX, timers_max: int = 1, judge_all: bool = False) -> Exploration:
    """Visit every state. `judge_all`: drive on and judge from every state, not only from the ends.

    Raises the first `Violation`, with its trace, or `ScopeTooLarge`.
    """
    seen: set[tuple[int, int]] = {_mark(world, timers_max)}
    stack = [_Node(Frozen(world), timers_max, ())]
    transitions = ends = 0
    while stack:
        node = stack.pop()
        here = node.frozen.thaw()
        choices = _scope(here, node.timers_left)
        ends += not choices
        if judge_all or not choices:
            done = list(node.trace)
            _blame(done, partial(settle, node.frozen.thaw(), done))
        for choice in choices:
            transitions += 1
            following, left = _follow(node, choice, here if choice is choices[-1] else node.frozen.thaw())
            mark = _mark(following, left)
            if mark not in seen:
                seen.add(mark)
                stack.append(_Node(Frozen(following), left, (*node.trace, choice)))
        if len(seen) > states_max:
            raise ScopeTooLarge(f"more than {states_max} states")
    return Exploration(len(seen), transitions, ends)


def settle(world: World, done: list[Choice] | None = None) -> World:
    """Drive on without faults, always by the first choice, and judge the end; `done` gets the choices."""
    done = [] if done is None else done
    _note(world, CALM, done)
    for _ in range(CALM_STEPS_MAX):
        choices = world.drain_choices()
        if not choices:
            world.judge()
            return world
        _note(world, choices[0], done)
    raise NoEnd(f"no end after {CALM_STEPS_MAX} calm steps")


def _note(world: World, choice: Choice, done: list[Choice]) -> None:
    done.append(choice)
    world.perform(choice)


def _scope(world: World, timers_left: int) -> Sequence[Choice]:
    timers = world.timers() if timers_left else ()
    return [*world.choices(), *timers, *world.faults()]


def _follow(node: _Node, choice: Choice, following: World) -> tuple[World, int]:
    _blame([*node.trace, choice], lambda: following.do(choice))
    return following, node.timers_left - (choice[0] == "timer")


def _mark(world: World, timers_left: int) -> tuple[int, int]:
    picture: Hashable = world.picture()
    return hash(picture), timers_left


def _blame(trace: list[Choice], act: Callable[[], object]) -> None:
    try:
        act()
    except Violation as violation:
        violation.trace = tuple(trace)
        raise
