"""Each protocol here has one rule broken, and an oracle condemns some random schedule for it.

Invariants of the machines are switched off, as they would find the bug first: the tests are of the oracles.
"""

from __future__ import annotations

import pytest

from checkpoint_lab import GRAPHS, ScheduleOutcome
from checkpoint_protocols.recovery import Protocol
from tests.protocol.literal import coordinated, sender_logging, synchronous_logging
from tests.protocol.long_runs import play_long
from tests.simulator.measured import seeds_for

SEEDS = 100
"""Long schedules until a bug counts as missed."""

BUGS: dict[str, tuple[Protocol, str, str]] = {
    "P6d sends between the phases": (coordinated.NON_BLOCKING, "cycle", "O1 O13"),
    "P6d has one phase": (coordinated.ONE_PHASE, "diamond", "O1 O11 O13"),
    "P6d asks no sender": (coordinated.ASKS_NO_SENDER, "diamond", "O1 O11 O13"),
    "P6d agrees without a checkpoint": (coordinated.AGREES_WITHOUT_A_CHECKPOINT, "diamond", "O1 O11 O13"),
    "P6d votes before it is stored": (coordinated.VOTES_BEFORE_IT_IS_STORED, "diamond", "O1 O11 O13"),
    "P6d decides before it is stored": (coordinated.DECIDES_BEFORE_IT_IS_STORED, "diamond", "O1 O11 O13"),
    "P6d erases with the decision": (coordinated.ERASES_WITH_THE_DECISION, "pipeline", "O12"),
    "P6d forgets the decision": (coordinated.FORGETS_THE_DECISION, "diamond", "O1 O12 O13"),
    "P6d keeps marks that were overtaken": (coordinated.KEEPS_MARKS_THAT_WERE_OVERTAKEN, "diamond", "O17"),
    "P6d shows everything": (coordinated.SHOWS_EVERYTHING, "diamond", "O1 O11 O13"),
    "P6f delivers before it is stored": (
        synchronous_logging.DELIVERS_BEFORE_IT_IS_STORED,
        "join",
        "O1 O2 O3 O11 O15 O17",
    ),
    "P6f does not dedupe": (synchronous_logging.DOES_NOT_DEDUPE, "join", "O3"),
    "P6f drops repetitions at once": (synchronous_logging.DROPS_REPETITIONS_AT_ONCE, "join", "O1 O2 O3 O10 O11 O15"),
    "P6f trims too early": (synchronous_logging.TRIMS_TOO_EARLY, "fan_out", "O12"),
    "P6f takes no checkpoint": (synchronous_logging.TAKES_NO_CHECKPOINT, "join", "O10"),
    "P6f replays nothing": (synchronous_logging.NO_REPLAY, "join", "O1 O2 O3 O11"),
    "P6b does not gate": (sender_logging.NO_GATE, "join", "O1 O3"),
    "P6b answers before it is stored": (sender_logging.ANSWERS_BEFORE_IT_IS_STORED, "join", "O1 O3 O11"),
    "P6b does not dedupe": (sender_logging.DOES_NOT_DEDUPE, "diamond", "O2 O3"),
    "P6b takes early messages": (sender_logging.TAKES_EARLY_MESSAGES, "diamond", "O1 O2 O3 O15"),
    "P6b shows at once": (sender_logging.SHOWS_AT_ONCE, "diamond", "O11 O14"),
    "P6b covers what it received": (sender_logging.COVERS_WHAT_IT_RECEIVED, "join", "O1 O2 O3 O11 O12"),
    "P6b takes no checkpoint": (sender_logging.TAKES_NO_CHECKPOINT, "join", "O10"),
    "P6b replays sender by sender": (sender_logging.IN_ORDER_OF_SENDERS, "diamond", "O3 O11"),
}
"""Planted bug to its protocol, graph, and the oracles that may find it."""


def first_failure(bug: str) -> ScheduleOutcome:
    """The first of many schedules that an oracle condemns."""
    protocol, graph, _ = BUGS[bug]
    outcomes = (play_long(protocol, GRAPHS[graph], seed) for seed in seeds_for("logging", bug, range(SEEDS)))
    return next(outcome for outcome in outcomes if outcome.condemned)


@pytest.mark.parametrize("bug", BUGS)
def test_the_oracles_see(bug: str) -> None:
    found = str(first_failure(bug).error)

    assert found.split(":")[0] in BUGS[bug][2].split(), found
