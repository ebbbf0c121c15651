"""The advice for damaged rows names an epoch with neither unpublished nor deferred rows that are damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from store_world import OPERATOR, SINK, World

from spark_ckpt.content import damaged
from spark_ckpt.epochs.records import Manifest, SinkAck
from spark_ckpt.epochs.ways_back import choice_unseen, way_back
from spark_ckpt.errors import PublishConflict, PublishFailed


def back_from(world: World, epoch: int, path: str) -> int | None:
    error = damaged(path, "is missing", epoch=epoch, expected="5 bytes")
    log = world.store.log
    return way_back(error, SINK, epoch, log.state, log.manifest, world.store.verify)


def deferred_then_published(world: World) -> list[str]:
    """Publish epoch 1, defer rows in 2 and 3, publish them with 4; return the paths of the files of 4, oldest first."""
    world.epoch({"a": 1})
    held = world.deferred_epoch({"a": 2}).held[SINK]
    for value in (3, 4):
        world.snapshot({"a": value})
        manifest = world.manifest((), stage=True)
        all_rows = manifest.outputs[SINK].model_copy(update={"files": (*held.files, *manifest.outputs[SINK].files)})
        held = all_rows
        outputs, kept = ({SINK: all_rows}, {}) if value == 4 else ({}, {SINK: all_rows})
        world.commit(manifest.model_copy(update={"outputs": outputs, "held": kept}))
    return [file.path for file in held.files]


def test_the_advice_for_damaged_rows_names_no_epoch_that_defers_them(world: World) -> None:
    paths = deferred_then_published(world)
    assert [back_from(world, 4, path) for path in paths] == [1, 2, 3]


def test_the_advice_for_damaged_rows_names_an_epoch_that_can_be_restored(world: World, tmp_path: Path) -> None:
    paths = deferred_then_published(world)
    (tmp_path / "store/edges" / SINK / paths[0]).unlink()
    back = back_from(world, 4, paths[2])
    assert back == 1
    assert world.begin(back).manifest.epoch == 1


def test_the_damaged_file_is_found_by_its_full_name(world: World) -> None:
    deferred_then_published(world)
    log, read = world.store.log, world.store.log.manifest
    files = read(4).outputs[SINK].files
    short, long = (replace(files[number], path=path) for number, path in ((0, "1.parquet"), (2, "11.parquet")))

    def renamed(epoch: int) -> Manifest:
        """Return the manifest with `1.parquet` as the oldest file and `11.parquet` as the newest one."""
        names = {files[0].path: short, files[2].path: long}
        output = read(epoch).outputs.get(SINK) or read(epoch).held[SINK]
        named = output.model_copy(update={"files": tuple(names.get(file.path, file) for file in output.files)})
        key = "outputs" if SINK in read(epoch).outputs else "held"
        return read(epoch).model_copy(update={key: {SINK: named}})

    back = way_back(damaged("11.parquet", "is missing", epoch=4), SINK, 4, log.state, renamed, lambda manifest: None)
    assert back == 3


def test_the_advice_without_a_restorable_epoch_is_the_beginning(world: World) -> None:
    path = world.epoch({"a": 1}).outputs[SINK].files[0].path
    assert back_from(world, 1, path) == 0


def test_the_advice_names_an_intact_epoch_for_a_choice_that_reads_no_file(world: World, tmp_path: Path) -> None:
    """Epoch 3 cannot be restored, for the sink has epoch 4 of another branch; 2 is damaged."""
    world.epoch({"a": 1})
    world.epoch({"a": 2}, acked=1)
    world.epoch({"a": 3}, acked=2)
    world.begin(2)
    world.epoch({"a": 4})
    world.store.log.record_acks(2, [SinkAck(sink=SINK, epoch=4)])
    (tmp_path / "store/state" / OPERATOR / world.chains[2][-1].path).unlink()

    log = world.store.log
    with pytest.raises(PublishConflict) as refused:
        choice_unseen(log.state(), 3, log.manifest, world.store.verify)
    assert "job.start(restore=1)" in refused.value.hint


def test_other_errors_have_no_restore_advice(world: World) -> None:
    world.epoch({"a": 1})
    log = world.store.log
    for error in (PublishFailed("away"), None):
        assert way_back(error, SINK, 1, log.state, log.manifest, world.store.verify) is None
