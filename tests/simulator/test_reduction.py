"""The reduced exploration finds the same ends and bugs as the full one, and an unsound reduction is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checkpoint_lab import MessageWorld, Violation, explore, message_world
from checkpoint_lab.world import Choice
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.recovery import Protocol
from tests.protocol.literal import coordinated, synchronous_logging
from tests.protocol.long_runs import crashes
from tests.protocol.scopes import LOOP, PAIR
from tests.simulator import markers
from tests.simulator.planted import CommitsAtOnce, ForgetsReplays, HearsTheDead

SMALL = [
    ("coordinated", PAIR),
    ("synchronous-logging", PAIR),
]
LONG = [
    ("coordinated", LOOP),
    ("markers", PAIR),
    ("uncoordinated", PAIR),
    ("epochs", PAIR),
    ("snapshots", PAIR),
    ("partial-recovery", PAIR),
    ("sender-logging", PAIR),
    ("asynchronous-logging", PAIR),
    ("cyclic-snapshots", LOOP),
]
"""Scopes with one failure each, so that they have recoveries."""

SCOPES = [*SMALL, *(pytest.param(*scope, marks=pytest.mark.long) for scope in LONG)]

BUGS: dict[str, tuple[Protocol, Graph]] = {
    "a dead life is heard": (markers.protocol(worker=HearsTheDead), PAIR),
    "a commit before it is durable": (markers.protocol(coordinator=CommitsAtOnce), PAIR),
    "votes before it is stored": (coordinated.VOTES_BEFORE_IT_IS_STORED, PAIR),
    "decides before it is stored": (coordinated.DECIDES_BEFORE_IT_IS_STORED, PAIR),
    "one phase": (coordinated.ONE_PHASE, PAIR),
    "erases with the decision": (coordinated.ERASES_WITH_THE_DECISION, PAIR),
    "delivers before it is stored": (synchronous_logging.DELIVERS_BEFORE_IT_IS_STORED, PAIR),
    "does not dedupe": (synchronous_logging.DOES_NOT_DEDUPE, PAIR),
    "replays nothing": (synchronous_logging.NO_REPLAY, PAIR),
}


ON_THE_LOOP = "what was in flight is not replayed"
PLANTED = {**BUGS, ON_THE_LOOP: (markers.protocol(worker=ForgetsReplays), LOOP)}


def verdict(protocol: Protocol, graph: Graph, reduced: bool) -> str | None:
    """The oracle that condemns the scope, or None."""
    try:
        explore(MessageWorld(protocol, graph, crashes(1), 1), reduced=reduced)
    except Violation as violation:
        return violation.ORACLE
    return None


@pytest.mark.parametrize(("protocol", "graph"), SCOPES, ids=lambda each: getattr(each, "name", each))
def test_both_explorations_reach_the_same_ends_and_the_reduced_one_visits_less(protocol: str, graph: Graph) -> None:
    full = explore(MessageWorld(MENU[protocol], graph, crashes(1), 1))
    reduced = explore(MessageWorld(MENU[protocol], graph, crashes(1), 1), reduced=True)

    assert reduced.finals == full.finals
    assert reduced.states < full.states
    assert reduced.transitions < full.transitions


@pytest.mark.parametrize("bug", [*BUGS, pytest.param(ON_THE_LOOP, marks=pytest.mark.long)])
def test_a_planted_bug_is_condemned_by_both(bug: str) -> None:
    assert [verdict(*PLANTED[bug], reduced=each) for each in (False, True)].count(None) == 0


def unsound(monkeypatch: pytest.MonkeyPatch, reduces: Callable[[MessageWorld, list[Choice]], list[Choice]]) -> bool:
    """Return True if another reduction changes the ends of a scope."""
    full = explore(MessageWorld(MENU["coordinated"], PAIR, crashes(1), 1))
    monkeypatch.setattr(message_world, "enough", reduces)
    return explore(MessageWorld(MENU["coordinated"], PAIR, crashes(1), 1), reduced=True).finals != full.finals


def test_running_one_process_after_the_other_is_unsound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process runs without effects of the others: ends are missed, and the comparison finds it."""

    def first_come(world: MessageWorld, choices: list[Choice]) -> list[Choice]:
        return choices[:1] if not message_world.can_fail(world) else choices

    assert unsound(monkeypatch, first_come)


def test_a_reduction_that_ignores_later_failures_is_unsound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduces in a recovery while a process may still fail, so that failures within the recovery are missed."""

    def too_early(world: MessageWorld, choices: list[Choice]) -> list[Choice]:
        return [choice for choice in choices if choice[0] in ("restore", "publish", "read")][:1] or choices

    assert unsound(monkeypatch, too_early)
