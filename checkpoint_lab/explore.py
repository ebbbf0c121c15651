"""Exhaustive exploration of small scopes: every order of every step, each state visited once.

The world bounds the scope by its inputs and its budgets of faults, the caller by the number of timers that may expire.
Periodic steps would never end. From every end the world is driven calmly and judged.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

from checkpoint_lab.copying import Frozen
from checkpoint_lab.violations import NoEnd, Violation
from checkpoint_lab.world import CALM, Choice, World

STATES_MAX = 100_000
CALM_STEPS_MAX = 5_000


class ScopeTooLarge(Exception):
    """More states than allowed: make the scope smaller, or raise the bound on purpose."""


@dataclass(frozen=True)
class Exploration:
    """Counts of distinct states, transitions, and states without a successor. `finals`: hashed pictures of these."""

    states: int
    transitions: int
    ends: int
    finals: frozenset[int] = field(default=frozenset(), repr=False)


@dataclass(frozen=True)
class _Node:
    frozen: Frozen[World]
    timers_left: int
    trace: tuple[Choice, ...]


def explore(
    world: World, states_max: int = STATES_MAX, timers_max: int = 1, judge_all: bool = False, reduced: bool = False
) -> Exploration:
    """Visit every state. `judge_all`: drive on and judge from every state, not only from the ends.

    `reduced`: do not try every order of steps that affect nothing else (`World.enough`); fewer states are visited and
    the same ends are reached. Raises the first `Violation`, with its trace, or `ScopeTooLarge`.
    """
    search = _Search(states_max, judge_all, reduced)
    search.arrive(world, timers_max, ())
    while search.stack:
        search.expand(search.stack.pop())
    return Exploration(len(search.seen), search.transitions, search.ends, frozenset(search.finals))


class _Search:
    """States seen so far, and those still to be visited."""

    def __init__(self, states_max: int, judge_all: bool, reduced: bool) -> None:
        self.states_max, self.judge_all, self.reduced = states_max, judge_all, reduced
        self.seen: set[tuple[int, int]] = set()
        self.finals: set[int] = set()
        self.stack: list[_Node] = []
        self.transitions = self.ends = 0

    def arrive(self, world: World, timers_left: int, trace: tuple[Choice, ...]) -> None:
        """Add a state to the stack if it is new. Raises `ScopeTooLarge`."""
        mark = _mark(world, timers_left)
        if mark not in self.seen:
            self.seen.add(mark)
            self.stack.append(_Node(Frozen(world), timers_left, trace))
        if len(self.seen) > self.states_max:
            raise ScopeTooLarge(f"more than {self.states_max} states")

    def expand(self, node: _Node) -> None:
        """Follow every choice of a state, or a sufficient few."""
        here = node.frozen.thaw()
        choices = _scope(here, node.timers_left)
        if not choices or self.judge_all:
            self._judge(node, here, ended=not choices)
        few = here.enough(choices) if self.reduced else choices
        # the few suffice only if no other process can see their effect
        if len(few) < len(choices) and self._are_private(node, here.public(), few):
            return
        for choice in choices:
            self._follow(node, choice)

    def _are_private(self, node: _Node, public: Hashable, few: Sequence[Choice]) -> bool:
        """Follow `few`; return True if none of them changes the public state."""
        return all(self._follow(node, choice).public() == public for choice in few)

    def _judge(self, node: _Node, here: World, ended: bool) -> None:
        if ended:
            self.ends += 1
            self.finals.add(hash(here.picture()))
        done = list(node.trace)
        _blame(done, partial(settle, node.frozen.thaw(), done))

    def _follow(self, node: _Node, choice: Choice) -> World:
        self.transitions += 1
        following, trace = node.frozen.thaw(), (*node.trace, choice)
        _blame(list(trace), lambda: following.do(choice))
        # expired timers bound the scope: periodic ones would never end
        self.arrive(following, node.timers_left - (choice[0] == "timer"), trace)
        return following


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


def _mark(world: World, timers_left: int) -> tuple[int, int]:
    picture: Hashable = world.picture()
    return hash(picture), timers_left


def _blame(trace: list[Choice], act: Callable[[], object]) -> None:
    try:
        act()
    except Violation as violation:
        violation.trace = tuple(trace)
        raise
