"""Aligned barriers survive every schedule: crashes, zombies, slow stores, lost answers, wild timeouts."""

from __future__ import annotations

from typing import ClassVar

import pytest

from checkpoint_lab.barrier_storage import DIAMOND, JOIN, PIPELINE, BarrierGraph
from checkpoint_protocols import barrier as b
from checkpoint_protocols.machine import Effect, Event
from tests.protocol.barrier_runs import GRAPHS, run

SEEDS = 150
"""Per graph. More of them: `python -m integration_tests.proof`."""


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_every_schedule_ends_with_the_effect_of_a_run_without_failures(graph: BarrierGraph) -> None:
    """O1, O2, O6, O7, O8, O11 at every step, O3 and O10 at the end, invariants after each event."""
    for seed in range(SEEDS):
        run(graph, seed)


def test_schedules_without_faults_need_one_incarnation() -> None:
    worlds = [run(DIAMOND, seed, fault_rate=0) for seed in range(50)]

    assert any(world.durable.incarnation == 1 for world in worlds)
    assert any(len(world.durable.decided) > 2 for world in worlds)


class Recording:
    """Mixed into a machine: what all machines of a run said and met."""

    heard: ClassVar[list[str]] = []

    def handle(self, event: Event) -> list[Effect]:
        effects: list[Effect] = super().handle(event)  # type: ignore[misc]
        self.heard.extend(map(str, effects))
        return effects


class RecordingCoordinator(Recording, b.Coordinator):
    pass


class RecordingOperator(Recording, b.Operator):
    pass


class RecordingSink(Recording, b.SinkParticipant):
    pass


RECORDING = {"coordinator": RecordingCoordinator, "operator": RecordingOperator, "sink": RecordingSink}
RARE = (
    "RestoreTask",
    "alignment abandoned",
    "incarnation 1 is over",
    "AbortEpoch",
    "barrier held back",
    "SetTimer(name='retry",
    "CarryOver",
    "DiscardPrepared",
    "preparation waits",
    "preparation dropped",
    "fenced",
    "is unknown: the next start reads it there",
    "nothing of that incarnation has reached this task",
)


def test_the_schedules_reach_the_rare_paths() -> None:
    """Of the checker: a schedule that never restores a survivor or abandons an alignment proves little."""
    Recording.heard.clear()
    for seed in range(150):
        run(JOIN, seed, RECORDING)
        run(PIPELINE, seed, RECORDING)
    everything = "\n".join(Recording.heard)

    assert [each for each in RARE if each not in everything] == []


def test_zombies_are_fenced_by_the_log_and_by_what_they_hear() -> None:
    fenced: set[str] = set()

    class Watched(b.Coordinator):
        def _finish(self, outcome: b.Outcome, why: str) -> list[Effect]:
            fenced.add(f"{outcome.value}: {why.split(' sent ')[0]}")
            return super()._finish(outcome, why)

    for seed in range(150):
        run(PIPELINE, seed, {"coordinator": Watched})

    assert "fenced: a newer incarnation" in fenced
    assert "fenced: the log has a newer incarnation" in fenced
