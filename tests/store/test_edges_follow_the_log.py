"""Rows in flight on an edge: the table has those of the newest epoch; kept epochs keep their segments; every read is verified."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from store_world import EDGE, World

from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import EpochDamaged


def paths(*manifests: Manifest) -> set[str]:
    return {file.path for manifest in manifests for file in manifest.edges[EDGE].files}


def shown(world: World) -> set[str]:
    return {uri.rsplit("/", 1)[-1] for uri in DeltaTable(world.store.edge(EDGE).location.uri).file_uris()}


def there(world: World) -> set[str]:
    return {path.name for path in (Path(world.store.location.uri) / "inflight" / EDGE).glob("*.parquet")}


def test_the_table_has_only_the_rows_in_flight_at_the_newest_epoch(world: World) -> None:
    for number in range(1, 4):
        manifest = world.epoch({"a": number})
        assert shown(world) == paths(manifest)
    assert world.store.edge(EDGE).read(2).to_pylist() == [{"value": "in flight at 2"}]


def test_after_a_restore_the_table_has_the_rows_in_flight_of_that_epoch(world: World) -> None:
    first = world.epoch({"a": 1})
    world.epoch({"a": 2})
    point = world.begin(restore=1)
    world.store.materialize(point.manifest)
    assert shown(world) == paths(first)


def test_a_table_whose_log_is_damaged_is_created_again(world: World) -> None:
    manifest = world.epoch({"a": 1})
    (Path(world.store.location.uri) / "inflight" / EDGE / "_delta_log" / f"{0:020}.json").write_text("garbage")
    world.begin()
    world.store.reopened().edge(EDGE).materialize(manifest, world.line.incarnation)
    assert shown(world) == paths(manifest)


def test_segments_of_dropped_epochs_are_deleted_and_those_of_kept_ones_stay(world: World) -> None:
    manifests = [world.epoch({"a": number}, acked=number - 1) for number in range(1, 7)]
    report = world.store.retain(Retention(keep_last=2, slack=0))
    kept = [each for each in manifests if each.epoch not in report.epochs]
    assert 0 < len(kept) < 6
    assert there(world) == paths(*kept)


def test_segments_that_no_epoch_names_are_deleted_with_their_incarnation(world: World) -> None:
    world.in_flight(["never named"])
    manifest = world.epoch({"a": 1})
    world.store.retain(Retention())
    assert len(there(world)) == 2
    world.begin()
    world.store.retain(Retention())
    assert there(world) == paths(manifest)


def test_consumed_segments_are_deleted_even_if_already_missing(world: World) -> None:
    consumed = [file.path for file in world.in_flight(["consumed"]).files]
    for _ in range(2):
        world.store.edge(EDGE).remove(consumed)
        assert not there(world)


@pytest.mark.parametrize("deep", [False, True])
def test_a_segment_that_is_missing_damages_its_epoch(world: World, deep: bool) -> None:
    manifest = world.epoch({"a": 1})
    world.store.edge(EDGE).remove(paths(manifest))
    with pytest.raises(EpochDamaged, match="is missing"):
        world.store.verify(manifest, deep=deep)


def test_a_flipped_bit_in_a_segment_is_found(world: World) -> None:
    manifest = world.epoch({"a": 1})
    (name,) = paths(manifest)
    file = Path(world.store.location.uri) / "inflight" / EDGE / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    world.store.verify(manifest)
    for look in (lambda: world.store.verify(manifest, deep=True), lambda: world.store.edge(EDGE).read(1)):
        with pytest.raises(EpochDamaged, match="does not hold the bytes"):
            look()
