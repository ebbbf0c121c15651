"""P1, P5: the epoch that a new incarnation starts from; a damaged epoch is never chosen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from store_world import ELSEWHERE, JOB, OPERATOR, SINK, World

from spark_ckpt.cli.stores import status_of
from spark_ckpt.epochs import records
from spark_ckpt.epochs.records import SinkAck, SparkState
from spark_ckpt.epochs.restore import unpublished_rows
from spark_ckpt.errors import ConfigInvalid, EpochDamaged, EpochNotFound, FormatUnknown, StoreForeign
from spark_ckpt.store import log_table
from spark_ckpt.store.spark_state import Known, Moment
from spark_ckpt.store.store import Store


def remove_newest_state_file(world: World, tmp_path: Path) -> None:
    (tmp_path / "store/state" / OPERATOR / world.line.chain[-1].path).unlink()


def test_a_new_job_starts_at_the_empty_epoch_zero(tmp_path: Path) -> None:
    point = World(tmp_path / "store").begin()
    assert (point.incarnation, point.manifest.epoch, point.last) == (1, 0, 0)
    assert point.manifest.operators == {}


def test_latest_is_the_newest_epoch_of_the_lineage(world: World) -> None:
    world.epoch({"a": 1})
    newest = world.epoch({"a": 2})
    point = world.begin()
    assert point.manifest == newest


def test_restoring_an_epoch_branches_and_never_reuses_a_number(world: World) -> None:
    for value in range(1, 6):
        world.epoch({"a": value})
    point = world.begin(2)
    assert (point.manifest.epoch, point.last) == (2, 5)
    world.store.materialize(point.manifest)
    assert world.epoch({"b": 1}).epoch == 6
    assert world.state_at(6) == {"a": 2, "b": 1}
    assert [brief.epoch for brief in world.store.log.state().lineage()] == [6, 2, 1]


def test_diverged_epochs_stay_readable(world: World) -> None:
    for value in range(1, 4):
        world.epoch({"a": value})
    world.begin(1)
    world.epoch({"b": 9})
    assert world.state_at(3) == {"a": 3}
    assert world.begin(3).manifest.epoch == 3


def test_a_savepoint_is_restored_by_name(world: World) -> None:
    world.epoch({"a": 1})
    world.store.log.add_savepoint("before-deploy", 1)
    world.epoch({"a": 2})
    point = world.begin("before-deploy")
    assert (point.manifest.epoch, point.restored_from) == (1, "savepoint before-deploy")


@pytest.mark.parametrize("target", [77, "nobody"])
def test_the_error_of_an_unknown_target_lists_the_targets(world: World, target: str | int) -> None:
    world.epoch({"a": 1})
    world.store.log.add_savepoint("known", 1)
    with pytest.raises(EpochNotFound) as caught:
        world.begin(target)
    assert str(caught.value.context.get("kept", caught.value.context.get("savepoints"))) in ("1", "known")


@pytest.mark.parametrize("target", ["../x", "", "a b", True, 1.5])
def test_an_invalid_target_is_refused(world: World, target: str | int) -> None:
    with pytest.raises(ConfigInvalid):
        world.begin(target)


def refused(world: World) -> EpochDamaged:
    """Return the error of a start from the newest epoch; such a start changes nothing."""
    before = world.store.log.state().incarnation
    with pytest.raises(EpochDamaged) as caught:
        world.begin()
    assert world.store.log.state().incarnation == before
    return caught.value


def test_latest_refuses_a_damaged_epoch_and_names_the_one_to_restore(world: World, tmp_path: Path) -> None:
    good = world.epoch({"a": 1})
    world.epoch({"a": 2})
    remove_newest_state_file(world, tmp_path)
    assert refused(world).context["restore"] == 1
    assert world.begin(1).manifest == good


def test_the_error_of_a_damaged_epoch_names_the_sinks_that_have_it(world: World, tmp_path: Path) -> None:
    world.epoch({"a": 1})
    world.epoch({"a": 2})
    remove_newest_state_file(world, tmp_path)
    assert refused(world).context["would be repeated"] == f"{SINK} may have epoch 2"
    world.store.log.record_acks(1, [SinkAck(sink=SINK, epoch=2)])
    assert refused(world).context["would be repeated"] == f"{SINK} has epoch 2"


def test_a_truncated_file_is_damage(world: World, tmp_path: Path) -> None:
    world.epoch({"a": 1})
    world.epoch({"a": 2})
    path = tmp_path / "store/state" / OPERATOR / world.line.chain[-1].path
    path.write_bytes(path.read_bytes()[:-1])
    assert refused(world).context["restore"] == 1


def test_no_epoch_with_damaged_unpublished_rows_is_advised(world: World, tmp_path: Path) -> None:
    world.epoch({"a": 1})
    unpublished = world.epoch({"a": 2})
    world.epoch({"a": 3}, acked=1)
    (tmp_path / "store/edges" / SINK / unpublished.outputs[SINK].files[0].path).unlink()
    assert refused(world).context["restore"] == 1
    assert world.begin(1).manifest.epoch == 1


def test_damaged_deferred_rows_are_damage(world: World, tmp_path: Path) -> None:
    world.epoch({"a": 1})
    holding = world.deferred_epoch({"a": 2})
    (tmp_path / "store/edges" / SINK / holding.held[SINK].files[0].path).unlink()
    assert refused(world).context["restore"] == 1


def test_an_epoch_with_deferred_rows_counts_as_unpublished(world: World) -> None:
    world.epoch({"a": 1}, acked=1)
    holding = world.deferred_epoch({"a": 2})
    log_state = world.store.log.state()
    assert status_of(log_state, log_state.by_id[2]) == "unpublished"
    point = world.begin()
    assert (point.manifest.held, point.unpublished) == (holding.held, {})
    assert unpublished_rows(point.manifest, point.unpublished) == {SINK: [point.manifest]}
    assert world.epoch({"a": 3}, acked=1).held == {}
    log_state = world.store.log.state()
    assert [status_of(log_state, log_state.by_id[epoch]) for epoch in (1, 2, 3)] == [
        "published",
        "unpublished",
        "unpublished",
    ]
    world.epoch({"a": 4}, acked=3)
    log_state = world.store.log.state()
    assert [status_of(log_state, log_state.by_id[epoch]) for epoch in (2, 3)] == ["published", "published"]


@pytest.mark.parametrize("target", [2, "named"])
def test_a_requested_epoch_that_is_damaged_is_refused(world: World, tmp_path: Path, target: str | int) -> None:
    world.epoch({"a": 1})
    world.epoch({"a": 2})
    world.store.log.add_savepoint("named", 2)
    remove_newest_state_file(world, tmp_path)
    with pytest.raises(EpochDamaged):
        world.begin(target)
    assert world.store.log.state().incarnation == 1, "a refused restore begins nothing"


def test_starting_over_is_never_silent(world: World, tmp_path: Path) -> None:
    world.epoch({"a": 1})
    remove_newest_state_file(world, tmp_path)
    with pytest.raises(EpochDamaged):
        world.begin()
    assert world.begin(0).manifest.epoch == 0, "but it can be requested"


def test_unpublished_epochs_are_listed_oldest_first(world: World) -> None:
    for value in range(1, 5):
        world.epoch({"a": value}, acked=value - 3 if value > 3 else 0)
    point = world.begin()
    assert [manifest.epoch for manifest in point.unpublished[SINK]] == [2, 3, 4]
    assert point.dropped == {}


def test_an_older_restore_publishes_up_to_it_and_drops_later_epochs(world: World) -> None:
    for value in range(1, 6):
        world.epoch({"a": value}, acked=1 if value == 5 else 0)
    point = world.begin(3)
    assert [manifest.epoch for manifest in point.unpublished[SINK]] == [2, 3]
    assert point.dropped == {SINK: [4, 5]}


def test_dropped_epochs_are_recorded_until_the_sink_has_passed_them(world: World) -> None:
    for value in range(1, 4):
        world.epoch({"a": value})
    world.begin(1)
    world.epoch({"b": 1})
    assert world.begin().dropped == {SINK: [2, 3]}
    world.store.log.record_acks(world.line.incarnation, [SinkAck(sink=SINK, epoch=4)])
    point = world.begin()
    assert (point.dropped, point.unpublished) == ({}, {})


def test_acknowledgements_are_kept_and_never_decrease(world: World) -> None:
    world.epoch({"a": 1})
    world.epoch({"a": 2}, acked=1)
    world.store.log.record_acks(1, [SinkAck(sink=SINK, epoch=2)])
    world.store.log.record_acks(1, [SinkAck(sink=SINK, epoch=1)])
    assert world.store.reopened().log.state().acked == {SINK: 2}


@pytest.mark.parametrize("name", ["latest", "42", "../up", "", "a/b", ".hidden"])
def test_a_savepoint_name_that_could_be_mistaken_is_refused(world: World, name: str) -> None:
    world.epoch({"a": 1})
    with pytest.raises(ConfigInvalid):
        world.store.log.add_savepoint(name, 1)


def test_a_savepoint_keeps_its_meaning(world: World) -> None:
    world.epoch({"a": 1})
    world.epoch({"a": 2})
    world.store.log.add_savepoint("s", 1)
    world.store.log.add_savepoint("s", 1)
    with pytest.raises(ConfigInvalid):
        world.store.log.add_savepoint("s", 2)
    world.store.log.drop_savepoint("s")
    world.store.log.add_savepoint("s", 2)
    assert world.store.log.state().savepoints == {"s": 2}
    with pytest.raises(EpochNotFound):
        world.store.log.drop_savepoint("t")


def test_a_store_of_another_job_is_foreign(world: World, tmp_path: Path) -> None:
    with pytest.raises(StoreForeign, match=JOB) as refused:
        Store.open(str(tmp_path / "store"), "other")
    # In another location a renamed job would begin from nothing, and publish its rows again.
    assert f"give it the name '{JOB}' back" in refused.value.hint


def test_the_owner_of_another_kind_is_not_sent_to_a_new_location_only(world: World, tmp_path: Path) -> None:
    with pytest.raises(StoreForeign) as query:
        Store.open(str(tmp_path / "store"), JOB, kind="outbox")
    assert f"do not start it again: job '{JOB}' continues it" in query.value.hint
    Store.open(str(tmp_path / "outbox"), "orders", kind="outbox")
    with pytest.raises(StoreForeign) as job:
        Store.open(str(tmp_path / "outbox"), "orders")
    assert "spark-ckpt adopt CHECKPOINT STORE --job NAME" in job.value.hint


def test_a_store_without_its_log_is_not_sent_to_an_empty_folder(world: World, tmp_path: Path) -> None:
    (tmp_path / "store" / "state" / "totals").mkdir(parents=True, exist_ok=True)
    shutil.rmtree(tmp_path / "store" / "epochs")
    with pytest.raises(StoreForeign, match="no store") as refused:
        Store.open(str(tmp_path / "store"), JOB)
    assert "bring the folder epochs back from a backup" in refused.value.hint


def test_a_folder_with_other_content_is_foreign_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(StoreForeign, match="no store"):
        Store.open(str(tmp_path), JOB)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


@pytest.mark.parametrize("job", ["", "../x", "a/b", "-x", "a" * 129])
def test_a_job_name_that_is_no_name_is_refused(tmp_path: Path, job: str) -> None:
    with pytest.raises(ConfigInvalid):
        Store.open(str(tmp_path / "store"), job)


@pytest.mark.parametrize(("written", "advice"), [(2, "new store"), (4, "upgrade spark_ckpt")], ids=["older", "newer"])
def test_a_store_of_another_format_is_refused_with_both_formats(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int, advice: str
) -> None:
    monkeypatch.setattr(log_table, "FORMAT", written)
    world.store.log.add_savepoint("other", world.epoch({"a": 1}).epoch)
    monkeypatch.undo()
    with pytest.raises(FormatUnknown) as caught:
        Store.open(str(tmp_path / "store"), JOB)
    assert caught.value.context == {"found": written, "reads": records.FORMAT}
    assert advice in caught.value.hint


@pytest.mark.parametrize("written", [records.FORMAT - 1, records.FORMAT + 1])
def test_a_manifest_of_another_format_is_refused(world: World, written: int) -> None:
    world.snapshot({"a": 1})
    manifest = world.manifest().model_copy(update={"format": written})
    world.store.log.commit_epoch(manifest)
    with pytest.raises(FormatUnknown):
        world.store.log.manifest(1)


def test_a_store_keeps_its_identity(world: World, tmp_path: Path) -> None:
    assert Store.open(str(tmp_path / "store"), JOB).id == world.store.id
    assert World(tmp_path / "second").store.id != world.store.id


def of_topic(world: World, topic: str) -> None:
    """Commit an epoch whose source is `topic`."""
    world.snapshot({"a": world.last}, full=True)
    manifest = world.manifest().model_copy(
        update={"cursors": {"in": {}}, "source_identities": {"in": {"topic id": topic}}}
    )
    world.commit(manifest)


def test_the_error_of_a_damaged_epoch_names_a_source_that_changed_after_the_epoch_to_restore(
    world: World, tmp_path: Path
) -> None:
    for topic in ("old", "new"):
        of_topic(world, topic)
    remove_newest_state_file(world, tmp_path)
    advice = refused(world).hint
    assert "job.start(restore=1)" in advice
    assert "job.start(restore=1, accept_new_source='in')" in advice
    assert world.begin(1).manifest.epoch == 1


def of_spark(world: World, folder: Path, text: str) -> SparkState:
    """Keep a state of Spark's own operators in one file."""
    folder.mkdir(exist_ok=True)
    (folder / text).write_text(text)
    moment = Moment(1, 0, "{}", "v1\n{}", "a provider", 1, 1, ("dedupe",))
    return world.store.spark_states.keep(folder, [text], moment, Known())


def test_damaged_state_of_spark_at_an_older_epoch_does_not_block_the_newest(world: World, tmp_path: Path) -> None:
    """The older epoch is unpublished: only its rows are needed."""
    states = []
    for text in ("first", "second"):
        world.snapshot({"a": 1})
        states.append(of_spark(world, tmp_path / "checkpoint", text))
        world.commit(world.manifest().model_copy(update={"spark_state": states[-1]}))
    older, newest = (world.store.spark_states.index(each).files[0].path for each in states)
    location = world.store.spark_states.location
    location.delete([older])
    point = world.store.reopened().log.begin_incarnation(ELSEWHERE, takeover=True)
    assert [each.epoch for each in point.unpublished[SINK]][-2:] == [point.manifest.epoch - 1, point.manifest.epoch]
    location.delete([newest])
    with pytest.raises(EpochDamaged, match=newest):
        world.store.reopened().log.begin_incarnation(ELSEWHERE, takeover=True)
