"""Random schedules and all of small scopes: logging and coordinated checkpoints keep their promises in all of them.

Failures of processes, failed and torn writes, pauses, partitions; on the channels of sender-based logging also loss,
repetition and reordering.  The oracles judge every delivery, line, erasure, published row, and end.
"""

from __future__ import annotations

from collections import Counter

import pytest

from checkpoint_lab import GRAPHS, Faults, MessageWorld
from checkpoint_lab.explore import explore
from checkpoint_lab.scripted import CELLS_EVERY, campaign
from checkpoint_protocols.checkpoints import coordinated
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.message_logging import sender_logging, synchronous_logging
from checkpoint_protocols.recovery import Protocol, ProtocolSettings
from checkpoint_protocols.vocabulary import Json
from tests.protocol.long_runs import OneFailureAtATime, crashes, play

PROTOCOLS = [each.PROTOCOL for each in (coordinated, sender_logging, synchronous_logging)]
SENDERS = sender_logging.PROTOCOL
VOLATILE: dict[str, Json] = {"log": "volatile"}
OPTIONS: list[dict[str, Json]] = [{}, {"block": "receipts"}, VOLATILE, {"log": "volatile", "block": "receipts"}]

each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
# Per graph. The large number is a long test's; tests/protocol/test_logging_bugs.py judges what schedules find.
each_number = pytest.mark.parametrize("seeds", [8, pytest.param(25, marks=pytest.mark.long)])
each_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


@each_number
@each_protocol
def test_no_schedule_breaks_a_promise(protocol: Protocol, seeds: int) -> None:
    counts = Counter[str]()
    for name in GRAPHS:
        for seed in range(seeds):
            outcome = play(protocol, GRAPHS[name], seed, Faults(crashes=4), inputs=4, steps=150)
            assert outcome.ok, f"{name} {seed}: {outcome.error}"
            counts.update(outcome.counts)

    assert min(counts[kind] for kind in ("recovery", "shown", "drop")) > 4 * seeds


@each_protocol
def test_schedules_reach_every_cell_of_the_tables(protocol: Protocol) -> None:
    """Within two hundred schedules; the test ends when no cell is missed."""
    report = campaign(protocol, GRAPHS["diamond"], [], steps=150, inputs=6)
    for first in range(0, 200, 25):
        seeds = range(first * CELLS_EVERY, (first + 25) * CELLS_EVERY, CELLS_EVERY)
        report.add(campaign(protocol, GRAPHS["diamond"], seeds, steps=150, inputs=6))
        if not report.missed:
            break

    assert report.failures == []
    assert report.missed == []


@each_option
def test_one_failure_at_a_time_is_survived_with_every_kind_of_log(options: dict[str, Json]) -> None:
    counts = Counter[str]()
    for name in GRAPHS:
        for seed in range(6):
            outcome = play(SENDERS, GRAPHS[name], seed, Faults(crashes=6), 4, 250, options, OneFailureAtATime)
            assert outcome.ok, f"{name} {seed}: {outcome.error}"
            counts.update(outcome.counts)

    assert counts["recovery"] > 60


def test_stable_logs_survive_failures_of_both_ends_with_blocking_receipts_too() -> None:
    for name in GRAPHS:
        for seed in range(6):
            outcome = play(SENDERS, GRAPHS[name], seed, crashes(10), 4, 250, {"block": "receipts"})
            assert outcome.ok, f"{name} {seed}: {outcome.error}"


def test_volatile_logs_lost_with_their_receivers_are_an_error_before_any_restart() -> None:
    """Two failures at once are beyond the promise: some schedules end with an error, and none leaves orphans."""
    ends = Counter[str]()
    for seed in range(120):
        outcome = play(SENDERS, GRAPHS["pipeline"], seed, crashes(10), 6, 300, VOLATILE)
        ends["survived" if outcome.ok else type(outcome.error).__name__] += 1
        if isinstance(outcome.error, ProtocolViolation):
            assert "must not be down together" in str(outcome.error)

    assert set(ends) == {"survived", "ProtocolViolation"}, ends


SCOPES: dict[str, tuple[Protocol, str, int, Faults, int, int]] = {
    # the scope: protocol, graph, inputs, faults, timers that may run out, states
    "P6f pair": (synchronous_logging.PROTOCOL, "pair", 2, crashes(1), 1, 4_488),
    "P6f pipeline": (synchronous_logging.PROTOCOL, "pipeline", 1, crashes(1), 1, 3_549),
    "P6d pair": (coordinated.PROTOCOL, "pair", 1, crashes(1), 1, 881),
    "P6d diamond, no failure": (coordinated.PROTOCOL, "diamond", 1, crashes(0), 1, 1_851),
    "P6b pair, a failure": (SENDERS, "pair", 1, crashes(1), 1, 4_627),
    "P6b pair, a loss and a repetition": (SENDERS, "pair", 1, Faults(0, 0, 0, 1, 1, 0, 0), 1, 562),
}


LARGE = ("P6f pair", "P6f pipeline", "P6d diamond, no failure", "P6b pair, a failure")
"""Long: random schedules of these protocols on these graphs are in the gate, above."""


@pytest.mark.parametrize("scope", [pytest.param(each, marks=[pytest.mark.long] * (each in LARGE)) for each in SCOPES])
def test_every_schedule_of_a_small_scope_keeps_the_promises(scope: str) -> None:
    protocol, graph, inputs, faults, timers, states = SCOPES[scope]

    found = explore(
        MessageWorld(protocol, GRAPHS[graph], faults, inputs, settings=ProtocolSettings()), timers_max=timers
    )

    assert found.states == states
    assert found.ends > 0
