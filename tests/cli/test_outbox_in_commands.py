"""Commands on the store of an outbox: its epochs are batches of a query."""

from __future__ import annotations

import pytest

from spark_ckpt.epochs.records import Holder, Manifest
from spark_ckpt.store.store import Store
from tests.outbox.outbox_kit import batch


@pytest.fixture
def store(tmp_path):
    opened = Store.open(str(tmp_path / "store"), "orders", kind="outbox")
    point = opened.log.begin_incarnation(Holder(host="here"))
    manifest = Manifest(
        job="orders",
        epoch=1,
        incarnation=point.incarnation,
        attempt="a",
        created_ms=0,
        reason="batch",
        spark_batch=batch(7),
    )
    opened.log.commit_epoch(manifest)
    return opened.location.uri


def test_list_shows_the_batch_of_each_epoch(store, command):
    (listed,) = command("list", store, "--json").json["epochs"]
    assert listed["batch"] == 7
    assert command("list", store).out.splitlines()[0].startswith("outbox")


def test_show_names_the_batch_and_its_query(store, command):
    assert command("show", store, "1", "--json").json["spark_batch"] == batch(7).model_dump()
    assert "7 of query q" in command("show", store, "1").out


def test_a_savepoint_keeps_a_batch(store, command):
    assert command("savepoint", "add", store, "before-deploy").code == 0
    assert command("list", store, "--json").json["savepoints"] == {"before-deploy": 1}


def test_a_report_is_written(store, command, tmp_path):
    assert command("report", store, "-o", tmp_path / "page.html").code == 0
    assert "orders" in (tmp_path / "page.html").read_text()
