"""An epoch is (incarnation, epoch): its number comes again if it died undecided, and old messages of it do not count."""

from __future__ import annotations

from checkpoint_protocols.ids import Epoch, Incarnation, TaskId
from checkpoint_protocols.machine import Drop, Effect, Event
from spark_ckpt.coordination.coordinator import Coordinator, CoordinatorPhase, Limits, Topology
from spark_ckpt.coordination.messages import EpochRequested, InjectBarrier, Reason, SnapshotAcked, Started, StoreEpoch

LIMITS = Limits(
    interval_ms=10, epoch_timeout_ms=60, store_timeout_ms=60, publish_timeout_ms=60, retry_ms=5, max_unpublished=2
)


class TellsIncarnationsApartByEpochOnly(Coordinator):
    """The planted bug: it counts acknowledgements that the open epoch's number got in an earlier incarnation."""

    def _door(self, event: Event) -> list[Effect] | None:
        why = self._stale(event)
        return None if why is None else [Drop(event, why)]


def in_its_first_epoch(incarnation: int, machine: type[Coordinator] = Coordinator) -> tuple[Coordinator, InjectBarrier]:
    """A coordinator over a log without epochs, that has begun one."""
    topology = Topology(frozenset({TaskId("a")}), frozenset())
    coordinator = machine(topology, Incarnation(incarnation), Epoch(0), LIMITS)
    coordinator.handle(Started())
    effects = coordinator.handle(EpochRequested(Reason.SAVEPOINT))
    return coordinator, next(effect for effect in effects if isinstance(effect, InjectBarrier))


def test_a_number_without_a_decision_comes_again_under_another_incarnation() -> None:
    _, died = in_its_first_epoch(incarnation=1)
    coordinator, begun = in_its_first_epoch(incarnation=2)

    effects = coordinator.handle(SnapshotAcked(TaskId("a"), died.epoch, died.incarnation))

    assert (died.epoch, died.incarnation) == (1, 1)
    assert (begun.epoch, begun.incarnation) == (1, 2)
    assert [type(effect) for effect in effects] == [Drop]
    assert coordinator.phase is CoordinatorPhase.ALIGNING


def test_a_coordinator_without_incarnations_commits_an_epoch_that_no_task_has_stored() -> None:
    coordinator, begun = in_its_first_epoch(2, TellsIncarnationsApartByEpochOnly)

    effects = coordinator.handle(SnapshotAcked(TaskId("a"), begun.epoch, Incarnation(1)))

    assert any(isinstance(effect, StoreEpoch) for effect in effects)
