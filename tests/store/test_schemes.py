"""A store needs a location whose commit is a compare-and-swap."""

from __future__ import annotations

import pytest

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.restore import resolve
from spark_ckpt.errors import ConfigInvalid, EpochDamaged, EpochNotFound, StoreForeign
from spark_ckpt.store.epoch_log import wall_ms
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_table import LogTable
from spark_ckpt.store.schemes import SCHEMES, store_location
from spark_ckpt.store.store import Store


@pytest.mark.parametrize("uri", ["foo://bucket/store", "http://host/store", "kafka://topic", "FOO://x"])
@pytest.mark.parametrize("opened", [store_location, existing_store, lambda uri: Store.open(uri, "job")])
def test_an_unknown_scheme_is_refused_with_the_list_of_known_ones(uri, opened):
    with pytest.raises(ConfigInvalid, match="no store can be kept at") as refused:
        opened(uri)
    assert all(f"{scheme}://" in refused.value.hint for scheme in SCHEMES)


@pytest.mark.parametrize("uri", ["relative/folder", "/absolute", "file:///absolute", "s3://bucket/store", "S3A://b/s"])
def test_folders_and_object_stores_are_accepted(uri):
    assert store_location(uri).uri


def test_digits_name_an_epoch_unless_a_savepoint_has_that_name():
    assert resolve(LogState(), "0") == (0, "epoch 0")
    assert resolve(LogState(savepoints={"7": 3}), "7") == (3, "savepoint 7")
    with pytest.raises(EpochNotFound, match="epoch 7 is not in the log"):
        resolve(LogState(), "7")


def test_inspecting_a_store_reads_it_once(tmp_path, monkeypatch):
    Store.open(str(tmp_path / "store"), "orders")
    opened = []
    real = LogTable.open
    monkeypatch.setattr(LogTable, "open", lambda *given, **named: opened.append(given) or real(*given, **named))
    assert existing_store(str(tmp_path / "store")).job == "orders"
    assert len(opened) == 1


def test_inspecting_creates_no_store(tmp_path):
    with pytest.raises(StoreForeign, match="there is no store here"):
        existing_store(str(tmp_path / "none"))
    assert list(tmp_path.iterdir()) == []


def test_a_partly_created_store_is_reported_and_unchanged(tmp_path):
    LogTable.open(Location(str(tmp_path / "store")).child("epochs"), wall_ms, create=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(EpochDamaged, match="does not say whose it is"):
        existing_store(str(tmp_path / "store"))
    assert sorted(tmp_path.rglob("*")) == before
