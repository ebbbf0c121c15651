"""Small scopes are explored completely, and failing traces are shrunk."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import checkpoint_lab as sim
from checkpoint_lab.explore import attempt, settle
from checkpoint_lab.message_world import MessageWorld
from checkpoint_lab.violations import Violation
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.menu import MENU
from tests.protocol.literal.synchronous_logging import TAKES_NO_CHECKPOINT
from tests.simulator import markers
from tests.simulator.planted import CommitsAtOnce, HearsTheDead, RecordsNothing

ONE_CRASH = sim.Faults(1, 0, 0, 0, 0, 0, 0)


def small(protocol: object = None, faults: sim.Faults = sim.NO_FAULTS, inputs: int = 1) -> MessageWorld:
    return MessageWorld(protocol or markers.protocol(), sim.GRAPHS["pair"], faults, inputs)  # type: ignore[arg-type]


def test_every_order_of_a_small_job_ends_well() -> None:
    explored = sim.explore(small(inputs=2), judge_all=True)

    assert explored.states == 180
    assert explored.ends == 3


# The reduced exploration reaches the same ends: test_reduction.py.
@pytest.mark.parametrize(("reduced", "states"), [(True, 300), pytest.param(False, 1_000, marks=pytest.mark.long)])
def test_every_crash_at_every_step_is_survived(reduced: bool, states: int) -> None:
    explored = sim.explore(small(faults=ONE_CRASH), reduced=reduced)

    assert explored.states > states


def test_exploration_finds_a_violation_with_its_trace() -> None:
    with pytest.raises(Violation, match="O7") as found:
        sim.explore(small(markers.protocol(coordinator=CommitsAtOnce)))

    again = small(markers.protocol(coordinator=CommitsAtOnce))
    with pytest.raises(Violation, match="O7"):
        again.follow(found.value.trace)


def test_a_scope_with_too_many_states_is_refused() -> None:
    with pytest.raises(sim.ScopeTooLarge):
        sim.explore(small(inputs=2), states_max=20)


EVERY_FAULT = sim.Faults(control_losses=1, late=1, damages=1, suspicions=2)


def test_worlds_that_differ_in_what_faults_left_behind_are_two_states() -> None:
    asked = small(MENU["markers"], EVERY_FAULT).follow([("timer", "coordinator", 0)])
    begun = asked.copy().follow([("stored", "coordinator", 0, "ok")])
    one, other = (begun.copy().follow([("suspect", name)]) for name in ("s", "k"))
    replaced = asked.copy().follow([("suspect", "coordinator"), ("recover",)])
    damaged = begun.copy().follow([("damage", "coordinator", 0, "lost")])
    without = {"a zombie": replaced.copy(), "late writes": replaced.copy(), "what lines carry": begun.copy()}
    without["a zombie"].zombies.clear()
    without["late writes"].processes["coordinator"].late.clear()
    without["what lines carry"].processes["coordinator"].transport = None
    forgotten = damaged.copy()
    forgotten.processes["coordinator"].storage.copies.clear()

    # which of two processes is taken for dead
    assert one.picture() != other.picture()
    assert replaced.picture() not in (without["a zombie"].picture(), without["late writes"].picture())
    assert begun.picture() != without["what lines carry"].picture()
    assert damaged.picture() != forgotten.picture()


class TwoWays(sim.World):
    """Goes left or right eight times. It has no picture of its own."""

    def __init__(self) -> None:
        self.path = ""

    def choices(self) -> list[sim.Choice]:
        return [("go", "l"), ("go", "r")] if len(self.path) < 8 else []

    def timers(self) -> list[sim.Choice]:
        return []

    faults = drain_choices = timers

    def do(self, choice: sim.Choice) -> None:
        self.act(choice)

    def _do_go(self, way: str) -> None:
        self.path += way

    def calm(self) -> None:
        """Nothing fails here."""

    judge = calm


def test_a_world_without_a_picture_has_a_state_for_each_trace() -> None:
    explored = sim.explore(TwoWays())

    assert (explored.states, explored.ends) == (2**9 - 1, 2**8)


def failing_world() -> MessageWorld:
    return MessageWorld(markers.protocol(worker=HearsTheDead), sim.GRAPHS["diamond"], sim.Faults())


def test_a_failure_that_only_the_last_rounds_show_replays_and_shrinks() -> None:
    def world() -> MessageWorld:
        return MessageWorld(TAKES_NO_CHECKPOINT, sim.GRAPHS["pair"], sim.NO_FAULTS, 1)

    outcome = sim.drive(world(), 0)
    shrunk = sim.shrink(world, outcome.trace)

    assert str(outcome.error).startswith("O10: s takes no checkpoint any more")
    assert str(sim.replay(world, outcome).error) == str(shrunk.error) == str(outcome.error)
    assert len(shrunk.trace) < len(outcome.trace)


def test_a_failing_trace_shrinks_to_what_the_failure_needs() -> None:
    outcome = next(o for o in (sim.drive(failing_world(), seed) for seed in range(100)) if o.condemned)

    shrunk = sim.shrink(failing_world, outcome.trace)

    assert isinstance(shrunk.error, Violation)
    assert shrunk.error.ORACLE == "O9"
    assert len(shrunk.trace) <= 12 < len(outcome.trace)
    assert [choice[0] for choice in shrunk.trace].count("crash") == 1
    with pytest.raises(Violation, match="O9"):
        failing_world().follow(shrunk.trace)


def test_every_step_of_a_shrunk_trace_is_needed() -> None:
    outcome = next(o for o in (sim.drive(failing_world(), seed) for seed in range(100)) if o.condemned)
    trace = sim.shrink(failing_world, outcome.trace).trace

    for place in range(len(trace)):
        done, _ = attempt(failing_world, [*trace[:place], *trace[place + 1 :]])
        assert len(done) >= len(trace)


def test_a_trace_that_does_not_fail_is_not_shrunk() -> None:
    with pytest.raises(sim.NotFailing):
        sim.shrink(small, [])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 50), max_size=60))
def test_no_list_of_numbers_breaks_a_sound_protocol(numbers: list[int]) -> None:
    """Hypothesis chooses: each number picks one of the possible choices."""
    world = MessageWorld(markers.protocol(), sim.GRAPHS["join"], sim.Faults())
    for number in numbers:
        possible = world.possible()
        world.do(possible[number % len(possible)])

    settle(world)


def test_the_explorer_finds_messages_that_no_snapshot_has() -> None:
    merge = Graph("merge", (("s", "k"), ("t", "k")))

    with pytest.raises(Violation, match="O2"):
        sim.explore(MessageWorld(markers.protocol(worker=RecordsNothing), merge, inputs=1))
