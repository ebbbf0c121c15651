"""Exhaustive exploration of small scopes: every order of every step, each state visited once.

The world bounds the scope by its inputs and its budgets of faults, the caller by the number of timers that may expire.
Periodic steps would never end. From every end the world is driven calmly and judged.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

from checkpoint_lab.picture import Frozen
from checkpoint_lab.schedules import ROUNDS, ROUNDS_MAX, TOGETHER_MAX
from checkpoint_lab.violations import NoEnd, Violation
from checkpoint_lab.world import CALM, Choice, Trace, World

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
    search = _StateSearch(states_max, judge_all, reduced)
    search.arrive(world, timers_max, ())
    while search.stack:
        search.expand(search.stack.pop())
    return Exploration(len(search.seen), search.transitions, search.ends, frozenset(search.finals))


class _StateSearch:
    """States seen so far, and those still to be visited."""

    def __init__(self, states_max: int, judge_all: bool, reduced: bool) -> None:
        self.states_max, self.judge_all, self.reduced = states_max, judge_all, reduced
        # Hashes and not the pictures, which would fill the memory. Two states with one hash would hide one of them; with 64 bits
        # that is improbable.
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
    _work(world, done)
    world.judge()
    return world


def _work(world: World, done: list[Choice]) -> None:
    for _ in range(CALM_STEPS_MAX):
        choices = world.drain_choices()
        if not choices:
            return
        _note(world, choices[0], done)
    raise NoEnd(f"no end after {CALM_STEPS_MAX} calm steps")


def _settle_in_rounds(world: World, done: list[Choice]) -> None:
    """Drive on and judge as `Driver.drain` does, with the steps that repeat for ever."""
    _note(world, CALM, done)
    _work(world, done)
    world.judge_rest()
    for number in range(ROUNDS_MAX):
        if number >= ROUNDS and not world.owes():
            break
        for choice in world.periodic():
            if number < TOGETHER_MAX:
                _note(world, choice, done)
            elif choice in world.periodic():
                _note(world, choice, done)
                _work(world, done)
        _work(world, done)
    world.judge()
    world.judge_rounds()


def _note(world: World, choice: Choice, done: list[Choice]) -> None:
    done.append(choice)
    world.perform(choice)


def _scope(world: World, timers_left: int) -> Sequence[Choice]:
    timers = world.timers() if timers_left else ()
    return [*world.choices(), *timers, *world.faults()]


def _mark(world: World, timers_left: int) -> tuple[int, int]:
    picture: Hashable = world.picture()
    # the same state with more timers left has more successors
    return hash(picture), timers_left


def _blame(trace: list[Choice], act: Callable[[], object]) -> None:
    try:
        act()
    except Violation as violation:
        violation.trace = tuple(trace)
        raise


# -- Delta debugging: shrink a failing trace to the choices that its failure needs.
#
# A choice that is no longer possible is skipped. After the last choice the world is driven calmly by its first choices. A
# trial counts if it fails in the same way.


Make = Callable[[], World]

TRIALS_MAX = 2_000


@dataclass(frozen=True)
class Shrunk:
    """The smallest failing trace that was found; it replays exactly. `trials` counts the worlds that were run."""

    trace: tuple[Choice, ...]
    error: Exception
    trials: int


class NotFailing(ValueError):
    """The trace does not fail, so it cannot be shrunk."""


def shrink(make: Make, trace: Trace, trials_max: int = TRIALS_MAX) -> Shrunk:
    """Shrink a trace that fails in the world that `make()` returns. Raises `NotFailing`."""
    return _Shrinking(make, trials_max).run(trace)


def attempt(make: Make, trace: Trace, rounds: bool = False) -> tuple[list[Choice], Exception | None]:
    """Follow the possible choices of `trace`, settle, judge. Return the performed choices and the error, if any.

    `rounds`: settle with steps that repeat for ever, and judge rest and progress, too.
    """
    world, done = make(), list[Choice]()
    try:
        for choice in trace:
            if choice == CALM or choice in world.possible():
                done.append(choice)
                world.perform(choice)
        if rounds:
            _settle_in_rounds(world, done)
        else:
            settle(world, done)
    except Exception as error:  # noqa: BLE001 - any error of a machine is a failure
        return done, error
    return done, None


class _Shrinking:
    def __init__(self, make: Make, trials_max: int) -> None:
        self.make = make
        self.trials_max = trials_max
        self.trials = 0
        self.rounds = False
        """True if the failure shows only after periodic steps. Each trial takes longer then."""

    def run(self, trace: Trace) -> Shrunk:
        done, error = attempt(self.make, trace)
        if error is None:
            self.rounds = True
            done, error = attempt(self.make, trace, self.rounds)
        if error is None:
            raise NotFailing(f"a trace of {len(trace)} choices does not fail")
        kept = self._smaller(done, _signature(error))
        # the first error belongs to the long trace; the report needs that of the short one
        _, last = attempt(self.make, kept, self.rounds)
        if isinstance(last, Violation):
            last.trace = tuple(kept)
        return Shrunk(tuple(kept), last or error, self.trials)

    def _smaller(self, trace: list[Choice], wanted: str) -> list[Choice]:
        """Remove chunks, halves first, down to single choices, until none can be removed."""
        size = max(1, len(trace) // 2)
        while self.trials < self.trials_max:
            shorter = self._without_chunks(trace, size, wanted)
            # no single choice can be removed
            if len(shorter) == len(trace) and size == 1:
                return trace
            if len(shorter) == len(trace):
                size = max(1, min(size, len(trace)) // 2)
            trace = shorter
        return trace

    def _without_chunks(self, trace: list[Choice], size: int, wanted: str) -> list[Choice]:
        start = 0
        while start < len(trace) and self.trials < self.trials_max:
            done = self._fails([*trace[:start], *trace[start + size :]], wanted)
            # `settle` adds calm choices, so a trial can perform as many as it left out
            if done is not None and len(done) < len(trace):
                trace = done
            else:
                start += size
        return trace

    def _fails(self, trace: Trace, wanted: str) -> list[Choice] | None:
        """Return the performed choices if the trace fails in the wanted way."""
        self.trials += 1
        done, error = attempt(self.make, trace, self.rounds)
        return done if error is not None and _signature(error) == wanted else None


def _signature(error: Exception) -> str:
    return error.ORACLE if isinstance(error, Violation) else type(error).__name__
