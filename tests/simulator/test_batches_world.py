"""Machines hosted in micro-batches: several messages in one step, with sends at its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

import checkpoint_lab as sim
from checkpoint_lab import schedules
from checkpoint_lab.batches_world import BatchesWorld
from checkpoint_lab.faults import hostile
from checkpoint_lab.violations import Lost, ShownTwice, Violation, WrongEffect
from checkpoint_protocols.checkpoints.index_based import log_key
from checkpoint_protocols.machine import Effect
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.message_logging.adaptive_logging import AdaptiveWorker
from checkpoint_protocols.message_logging.asynchronous_logging import AsynchronousWorker, plan
from checkpoint_protocols.recovery import Failure, Protocol, RecoveryPlan
from checkpoint_protocols.vocabulary import MORE, Drop, Envelope, Received

STEPS, INPUTS = 70, 4
SOUND = sorted(name for name, protocol in MENU.items() if protocol.sound)


def run(protocol: Protocol, graph: str, seed: int, crashes: int = 2, steps: int = STEPS) -> sim.ScheduleOutcome:
    faults = replace(hostile(seed), crashes=crashes)
    return schedules.drive(BatchesWorld(protocol, sim.GRAPHS[graph], faults, INPUTS), seed, steps)


def graphs(protocol: Protocol) -> Iterable[str]:
    return (name for name, graph in sim.GRAPHS.items() if not (protocol.needs.acyclic and graph.back_edges))


@pytest.mark.parametrize("seeds", [3, pytest.param(16, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_protocol_holds_when_messages_come_in_batches(name: str, seeds: int) -> None:
    batches = 0
    for graph in graphs(MENU[name]):
        for seed in range(seeds):
            outcome = run(MENU[name], graph, seed)
            batches += outcome.counts.get("batches", 0)

            assert outcome.ok, f"{graph}, seed {seed}: {outcome.error}"
    assert batches > 100 * seeds / 8


# -- asynchronous logging: the ends of batches are determinants


class LogsNoEnds(AsynchronousWorker):
    """The machine before its fix: receipts without the ends of batches."""

    def _on_received(self, event: Received) -> list[Effect]:
        return super()._on_received(replace(event, more=False))


def replays_in_any_batches(failure: Failure) -> RecoveryPlan:
    decided = plan(failure)
    parts = {process: replace(part, replay=tuple(map(_freed, part.replay))) for process, part in decided.parts.items()}
    return replace(decided, parts=parts)


def _freed(message: Envelope) -> Envelope:
    return replace(message, header={name: value for name, value in message.header.items() if name != MORE})


ASYNCHRONOUS = MENU["asynchronous-logging"]
NO_ENDS = replace(ASYNCHRONOUS, worker=LogsNoEnds, plan=replays_in_any_batches)
CONDEMNED = [("pipeline", 2, WrongEffect), ("join", 20, ShownTwice), ("two_back_edges", 23, ShownTwice)]


@pytest.mark.parametrize(("graph", "seed", "verdict"), CONDEMNED)
def test_a_log_without_the_ends_of_batches_is_condemned(graph: str, seed: int, verdict: type[Violation]) -> None:
    assert isinstance(run(NO_ENDS, graph, seed).error, verdict)


@pytest.mark.parametrize(("graph", "seed"), [(graph, seed) for graph, seed, _ in CONDEMNED])
def test_a_log_with_the_ends_of_batches_replays_them(graph: str, seed: int) -> None:
    assert run(ASYNCHRONOUS, graph, seed).ok


def test_a_batch_whose_last_message_is_dropped_is_published() -> None:
    assert run(ASYNCHRONOUS, "fan_out", 22).ok


# -- adaptive logging: a copy may be dropped only when the message is delivered


class DropsTheSecondCopy(AdaptiveWorker):
    """The machine before its fix: a message counts as received while its record is being written."""

    def _take_in(self, event: Received) -> list[Effect]:
        if log_key(event.message) in self._logging:
            return [Drop(event, "it is being logged")]
        return super()._take_in(event)


ADAPTIVE = MENU["adaptive-logging"]
LOST_COPY = ("pipeline", 287, 5, 100)


def test_dropping_the_copy_of_a_message_whose_record_is_being_written_loses_it() -> None:
    outcome = run(replace(ADAPTIVE, worker=DropsTheSecondCopy), *LOST_COPY)

    assert isinstance(outcome.error, Lost)


def test_the_copy_of_a_message_whose_record_is_being_written_is_kept() -> None:
    assert run(ADAPTIVE, *LOST_COPY).ok
