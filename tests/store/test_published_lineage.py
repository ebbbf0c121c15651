"""Published epochs of a sink follow the lineage: a number below the newest acknowledged one proves nothing."""

from __future__ import annotations

import pytest
from store_world import SINK, World

from spark_ckpt.epochs.records import EpochBrief, Folded, Published, SinkAck
from spark_ckpt.epochs.retention import Retention, kept_epochs
from spark_ckpt.epochs.unpublished import UnpublishedEpochs
from spark_ckpt.errors import PublishConflict


def ack(world: World, epoch: int) -> None:
    world.store.log.record_acks(world.line.incarnation, [SinkAck(sink=SINK, epoch=epoch)])


def diverged_branch(world: World) -> None:
    """Publish 1, not 2 and 3; then restore 1, and publish 4."""
    for value in (1, 2, 3):
        world.epoch({"a": value}, acked=1 if value == 3 else 0)
    world.begin(1)
    world.epoch({"a": 4})
    ack(world, 4)


def unpublished(world: World) -> list[int]:
    return world.store.reopened().log.state().unacked(SINK)


def test_a_lower_number_on_another_branch_is_not_published(world: World) -> None:
    diverged_branch(world)
    assert unpublished(world) == [2, 3]


def test_a_restore_of_epochs_that_a_sink_can_no_longer_get_is_refused_with_advice(
    world: World,
) -> None:
    diverged_branch(world)
    before = world.store.log.state()
    with pytest.raises(PublishConflict, match="not known to have epochs 2 and 3") as caught:
        world.begin(3)
    assert world.store.log.state() == before
    assert "job.start(restore=1)" in caught.value.hint
    assert world.begin(1).dropped == {}
    assert world.begin().manifest.epoch == 1


def test_an_acknowledged_epoch_acknowledges_its_ancestors(world: World) -> None:
    for value in (1, 2, 3):
        world.epoch({"a": value})
    ack(world, 2)
    assert unpublished(world) == [3]


def test_the_published_epochs_of_a_sink_outlive_the_rows_of_their_acknowledgements(world: World) -> None:
    diverged_branch(world)
    world.store.log.add_savepoint("kept", 3)
    world.begin()
    world.epoch({"a": 5})
    for _ in range(3):
        world.store.retain(Retention(keep_last=1, slack=0))
    assert unpublished(world) == [2, 3, 5]
    assert sorted(world.store.log.state().by_id) == [2, 3, 4, 5]


def test_each_unpublished_epoch_names_the_diverged_ones_that_a_sink_may_have(world: World) -> None:
    for value in (1, 2, 3):
        world.epoch({"a": value}, acked=1 if value == 3 else 0)
    world.begin(1)
    world.epoch({"a": 4})
    point = world.begin(3)
    assert [each.epoch for each in point.unpublished[SINK]] == [2, 3]
    assert point.diverged == {2: (4,), 3: (4,)}


def test_lost_epochs_descend_from_the_newest_one_only_if_its_incarnation_committed_them(world: World) -> None:
    for value in (1, 2):
        world.epoch({"a": value}, acked=1 if value == 2 else 0)
    world.store.log.release(1)
    world.store.log.accept_loss(4, 1)
    world.store.log.accept_loss(6, 5)
    assert world.begin().diverged == {2: (5, 6)}


def test_an_accepted_loss_of_one_sink_proves_nothing_for_another(world: World) -> None:
    """Incarnation 2 is lost: it may have restored epoch 1 before it committed the second sink's epoch."""
    for value in (1, 2):
        world.epoch({"a": value}, acked=1 if value == 2 else 0)
    world.store.log.release(1)
    world.store.log.accept_loss(2, 2)
    world.store.log.accept_loss(5, 2)
    assert world.begin().diverged == {2: (3, 4, 5)}


@pytest.mark.parametrize("newer", [False, True], ids=["nothing", "a newer epoch"])
def test_after_an_accepted_loss_diverged_epochs_are_not_known_to_be_published(world: World, newer: bool) -> None:
    """The loss reset the sink to epoch 1. A restore of 2 is refused, for any epoch published since."""
    world.epoch({"a": 1})
    world.epoch({"a": 2}, acked=1)
    ack(world, 2)
    world.begin(1)
    world.store.log.release(world.line.incarnation, "stopped")
    world.store.log.accept_loss(3, world.line.incarnation)
    assert unpublished(world) == [2]
    world.begin()
    if newer:
        world.epoch({"a": 4})
        ack(world, 4)

    with pytest.raises(PublishConflict, match="not known to have epoch 2") as caught:
        world.begin(2)
    assert "job.start(restore=1)" in caught.value.hint


def test_retention_keeps_the_descendants_of_an_unpublished_epoch(world: World) -> None:
    world.epoch({"a": 1}, full=True)
    for value in range(2, 8):
        world.deferred_epoch({"a": value})
    log_state = world.store.log.state()
    assert kept_epochs(log_state, Retention(keep_last=2), world.clock()) == {1, 2, 3, 4, 5, 6, 7}
    assert [each.epoch for each in world.begin().unpublished[SINK]] == [1]


def brief(epoch: int, base: int) -> EpochBrief:
    return EpochBrief(
        epoch=epoch, incarnation=1, attempt="a", base=base, previous=0, created_ms=0, duration_ms=0, reason="interval",
        rows_in=0, rows_out=0, sinks=(SINK,), acks=(),
    )  # fmt: skip


def test_a_fold_changes_neither_later_epochs_nor_acknowledged_ones() -> None:
    unpublished = UnpublishedEpochs({}, {})
    for each in (brief(1, 0), brief(2, 1)):
        unpublished.apply(each)
    unpublished.apply(Published(incarnation=1, acks=(SinkAck(sink=SINK, epoch=1),)))
    unpublished.apply(Folded(last=1, acked={}, owed={SINK: (1,)}))
    assert unpublished.by_sink() == {SINK: frozenset({2})}
