"""An epoch is (incarnation, epoch): its number comes again if it died undecided, and old messages of it do not count."""

from __future__ import annotations

from typing import ClassVar

from checkpoint_protocols import barrier as b
from checkpoint_protocols.ids import Epoch, Incarnation, TaskId
from checkpoint_protocols.machine import Drop, Effect, Event
from tests.protocol.barrier_runs import GRAPHS, run

LIMITS = b.Limits(
    interval_ms=10, epoch_timeout_ms=60, store_timeout_ms=60, publish_timeout_ms=60, retry_ms=5, max_unpublished=2
)


class NotesRecurringNumbers(b.Coordinator):
    """As shipped; acks of the open epoch's number that an earlier life asked for are noted."""

    noted: ClassVar[list[b.SnapshotAcked]] = []

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, b.SnapshotAcked) and event.epoch == self.open_epoch:
            self.noted.extend([event] if event.incarnation < self.incarnation else [])
        return super().handle(event)


def in_its_first_epoch(incarnation: int) -> tuple[b.Coordinator, b.InjectBarrier]:
    """A coordinator over a log without epochs, that has begun one."""
    topology = b.Topology(frozenset({TaskId("a")}), frozenset())
    coordinator = b.Coordinator(topology, Incarnation(incarnation), Epoch(0), LIMITS)
    coordinator.handle(b.Started())
    effects = coordinator.handle(b.EpochRequested(b.Reason.SAVEPOINT))
    return coordinator, next(effect for effect in effects if isinstance(effect, b.InjectBarrier))


def test_a_number_without_a_decision_comes_again_under_another_incarnation() -> None:
    _, died = in_its_first_epoch(incarnation=1)
    coordinator, begun = in_its_first_epoch(incarnation=2)

    effects = coordinator.handle(b.SnapshotAcked(TaskId("a"), died.epoch, died.incarnation))

    assert (died.epoch, died.incarnation) == (1, 1)
    assert (begun.epoch, begun.incarnation) == (1, 2)
    assert [type(effect) for effect in effects] == [Drop]
    assert coordinator.phase is b.CoordinatorPhase.ALIGNING


def test_schedules_do_bring_acks_of_an_earlier_life_for_the_open_number() -> None:
    NotesRecurringNumbers.noted.clear()
    for seed in range(100):
        for graph in GRAPHS:
            run(graph, seed, {"coordinator": NotesRecurringNumbers})

    assert len(NotesRecurringNumbers.noted) > 10
