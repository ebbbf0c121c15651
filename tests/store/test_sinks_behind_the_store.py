"""A sink that lacks published rows is refused, and the advice of the error lets the job continue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import PublishedEpoch, SinkContext
from spark_ckpt.endpoints.markers import sinks_taken_back
from spark_ckpt.epochs.identity import Confirmed
from spark_ckpt.epochs.records import SinkIdentity
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.epochs.sinks_behind import behind, rows_published
from spark_ckpt.errors import PublishConflict
from spark_ckpt.plan.graph import SinkBinding
from spark_ckpt.store.store import Store
from tests.store.store_world import JOB, SINK, World


class MarkedSink:
    """A sink whose marker is at `epoch`, and that has a command to declare an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def newest_published(self, context: SinkContext) -> PublishedEpoch | None:
        return PublishedEpoch(Epoch(self.epoch), Incarnation(1), lambda name: True) if self.epoch else None

    def declaring(self, context: SinkContext, epoch: Epoch) -> str:
        return f"declare {context.store_id} {context.sink} {epoch}"


def bound(epoch: int) -> list[SinkBinding]:
    unused: Any = None
    sink: Any = MarkedSink(epoch)
    return [SinkBinding(SINK, sink, unused, unused)]


def markers_at(epoch: int) -> dict[str, PublishedEpoch | None]:
    return {SINK: MarkedSink(epoch).newest_published(SinkContext(JOB, SINK, "", Incarnation(1)))}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Create epochs 1 to 4 with a row each; the log has acknowledgements of 1 to 3."""
    made = World(tmp_path / "store")
    made.begin()
    for epoch in range(1, 5):
        made.epoch({"a": epoch}, full=True, acked=epoch - 1)
    return made


def published(world: World, newest: int) -> dict[str, int]:
    log = world.store.log
    return rows_published(log.state(), log.manifest(newest), log.manifest)


def test_a_sink_must_have_the_newest_epoch_with_rows_that_it_has_acknowledged(world: World) -> None:
    assert published(world, 4) == {SINK: 3}
    assert [(each.has, each.published) for each in behind(markers_at(2), published(world, 4))] == [(2, 3)]
    for enough in (3, 4):
        assert behind(markers_at(enough), published(world, 4)) == []


def test_a_sink_without_a_marker_is_not_checked(world: World) -> None:
    assert behind({}, published(world, 4)) == []


def test_epochs_without_rows_need_no_marker(world: World) -> None:
    for acked in (4, 5):
        world.commit(world.manifest(stage=False).model_copy(update={"acks": world.acks(acked)}))

    assert published(world, 6) == {SINK: 4}


def test_a_start_publishes_lost_epochs_without_rows_again(tmp_path: Path) -> None:
    """The next epoch needs the marker that they leave: without it every start ended with a conflict."""
    world = World(tmp_path / "empty")
    world.begin()
    for acked in (0, 1):
        world.commit(world.manifest(stage=False).model_copy(update={"acks": world.acks(acked) if acked else ()}))

    lost = sinks_taken_back(bound(0), world.store, "latest", Confirmed())

    assert lost == {SINK: 0}
    point = world.store.log.begin_incarnation(world.holder, "latest", takeover=True, taken_back=lost)
    assert [manifest.epoch for manifest in point.unpublished[SINK]] == [1, 2]


def test_a_start_publishes_no_epoch_without_rows_again_to_a_sink_with_a_marker(tmp_path: Path) -> None:
    """A Delta table gets no commit for such an epoch: after an idle night a start would publish hundreds of them again."""
    world = World(tmp_path / "empty")
    world.begin()
    for acked in (0, 1, 2):
        world.commit(world.manifest(stage=False).model_copy(update={"acks": world.acks(acked) if acked else ()}))

    assert sinks_taken_back(bound(1), world.store, "latest", Confirmed()) == {}


def test_the_log_keeps_the_required_epoch_of_a_sink_after_retention(world: World) -> None:
    for acked in range(4, 12):
        world.commit(world.manifest(stage=False).model_copy(update={"acks": world.acks(acked)}))
    world.store.retain(Retention(keep_last=2, slack=0))
    reopened = Store.open(world.store.location.uri, JOB)
    assert 4 not in reopened.log.state().by_id

    log = reopened.log
    assert rows_published(log.state(), log.manifest(12), log.manifest) == {SINK: 4}


def test_a_replaced_table_need_not_have_earlier_epochs(world: World) -> None:
    identity = SinkIdentity(parts={"id": "b"}, after=4)
    world.commit(world.manifest(stage=False).model_copy(update={"sink_identities": {SINK: identity}}))

    assert published(world, 5) == {}


def test_a_restore_to_before_a_replacement_requires_no_marker(world: World) -> None:
    """A driver died after the first epoch for the new table, before its publish: the table has no marker."""
    identity = SinkIdentity(parts={"id": "b"}, after=4)
    world.commit(world.manifest().model_copy(update={"sink_identities": {SINK: identity}}))

    assert sinks_taken_back(bound(0), world.store, 2, Confirmed()) == {}
    world.store.log.begin_incarnation(world.holder, 2, takeover=True)
    assert sinks_taken_back(bound(0), world.store, "latest", Confirmed()) == {}


def test_a_start_is_refused_before_anything_changes_and_names_the_ways_to_continue(world: World) -> None:
    before = world.store.log.state()

    with pytest.raises(PublishConflict) as caught:
        sinks_taken_back(bound(2), world.store, "latest", Confirmed())

    assert world.store.log.state() == before
    assert caught.value.context == {"sink": SINK, "restore": 4}
    assert "job.start(restore=4)" in caught.value.hint
    moved = Confirmed(moved=frozenset({"in"}))
    with pytest.raises(PublishConflict, match=r"job.start\(restore=4, accept_moved='in'\)"):
        sinks_taken_back(bound(2), world.store, "latest", moved)
    assert f"declare {world.store.id} {SINK} 3 (not acknowledged: epoch 4 of {SINK};" in caught.value.hint
    assert sinks_taken_back(bound(3), world.store, "latest", Confirmed()) == {}
    assert sinks_taken_back(bound(2), world.store, "latest", Confirmed(new_sinks=frozenset({SINK}))) == {}


def test_an_epoch_published_by_another_driver_during_the_check_is_not_missing(world: World) -> None:
    class Slow(MarkedSink):
        def newest_published(self, context: SinkContext) -> PublishedEpoch | None:
            before = super().newest_published(context)
            world.store.log.record_acks(world.line.incarnation, world.acks(4))
            return before

    sink: Any = Slow(3)
    binding = bound(3)[0]
    assert sinks_taken_back([replace(binding, sink=sink)], world.store, "latest", Confirmed()) == {}


def test_the_missing_epochs_are_published_again_if_their_rows_are_still_staged(world: World) -> None:
    back = sinks_taken_back(bound(2), world.store, 4, Confirmed())
    point = world.store.log.begin_incarnation(world.holder, 4, takeover=True, taken_back=back)

    assert back == {SINK: 2}
    assert [each.epoch for each in point.unpublished[SINK]] == [3, 4]
    assert world.store.log.state().acked == {SINK: 2}


def test_the_error_names_an_older_epoch_if_staged_rows_are_gone(world: World, tmp_path: Path) -> None:
    (tmp_path / "store/edges" / SINK / world.store.log.manifest(3).outputs[SINK].files[0].path).unlink()

    with pytest.raises(PublishConflict) as caught:
        sinks_taken_back(bound(2), world.store, "latest", Confirmed())

    assert caught.value.context["restore"] == 2
    back = sinks_taken_back(bound(2), world.store, 2, Confirmed())
    point = world.store.log.begin_incarnation(world.holder, 2, takeover=True, taken_back=back)
    assert (point.manifest.epoch, point.unpublished) == (2, {})
    assert sinks_taken_back(bound(2), Store.open(world.store.location.uri, JOB), "latest", Confirmed()) == {}


def test_an_emptied_replacement_gets_no_epoch_of_the_old_table(world: World) -> None:
    """It replaced another table after epoch 4."""
    identity = SinkIdentity(parts={"id": "b"}, after=4)
    for epoch in (5, 6):
        manifest = world.manifest(world.acks(epoch - 1))
        world.commit(manifest.model_copy(update={"sink_identities": {SINK: identity}}))

    with pytest.raises(PublishConflict, match="has published epoch 5, but it has no epoch") as caught:
        sinks_taken_back(bound(0), world.store, "latest", Confirmed())
    assert caught.value.context["restore"] == 6
    back = sinks_taken_back(bound(0), world.store, 6, Confirmed())
    point = world.store.log.begin_incarnation(world.holder, 6, takeover=True, taken_back=back)
    assert (back, [each.epoch for each in point.unpublished[SINK]]) == ({SINK: 4}, [5, 6])


def restored_without_the_lost_epoch(world: World, tmp_path: Path) -> None:
    """The sink lost epoch 3, then the job restored epoch 2 and continued."""
    world.begin(2, taken_back={SINK: 2})
    world.epoch({"a": 5}, full=True)
    world.epoch({"a": 6}, full=True, acked=5)


def test_no_start_continues_from_an_epoch_whose_rows_the_sink_has_lost(world: World, tmp_path: Path) -> None:
    restored_without_the_lost_epoch(world, tmp_path)
    with pytest.raises(PublishConflict, match="not known to have epochs 3 and 4"):
        world.begin(4)


def test_a_fold_keeps_the_record_of_lost_rows(world: World, tmp_path: Path) -> None:
    for name, epoch in (("lost", 3), ("acknowledges", 4)):
        world.store.log.add_savepoint(name, epoch)
    restored_without_the_lost_epoch(world, tmp_path)
    for acked in range(7, 12):
        world.begin()
        world.epoch({"a": acked}, full=True, acked=acked - 1)
    world.store.retain(Retention(keep_last=1, slack=0))

    log = Store.open(world.store.location.uri, JOB).log
    assert not {5, 6} & log.state().by_id.keys()
    with pytest.raises(PublishConflict, match="their rows would be lost"):
        log.begin_incarnation(world.holder, "lost", takeover=True)


@pytest.mark.parametrize("tried", [False, True])
def test_no_epoch_is_advised_whose_lost_rows_retention_has_dropped(world: World, tried: bool) -> None:
    """A start from it published epoch 7 to a sink that lacks 3 to 6, and ended with a conflict."""
    world.store.log.add_savepoint("old", 1)
    for epoch in range(5, 9):
        world.epoch({"a": epoch}, full=True, acked=epoch - 1)
    world.store.retain(Retention(keep_last=2, slack=0))
    assert world.store.log.state().by_id.keys() == {1, 7, 8}
    if tried:
        world.begin(8, taken_back=sinks_taken_back(bound(2), world.store, 8, Confirmed()))

    with pytest.raises(PublishConflict) as caught:
        sinks_taken_back(bound(2), world.store, "latest", Confirmed())

    assert caught.value.context["restore"] == 1
    assert "of later epochs" in caught.value.hint, "the log has not all of them"
    back = sinks_taken_back(bound(2), world.store, 1, Confirmed())
    point = world.store.log.begin_incarnation(world.holder, 1, takeover=True, taken_back=back)
    assert (point.manifest.epoch, point.unpublished) == (1, {})
