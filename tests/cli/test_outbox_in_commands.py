"""Commands on the store of an outbox: its epochs are batches of a query."""

from __future__ import annotations

import json
import re

import pytest

from spark_ckpt.cli.asked_sinks import refusal_of
from spark_ckpt.cli.verbs import OWN
from spark_ckpt.epochs.records import Holder, Manifest, SinkAck, StagedFileRecord, StagedOutput
from spark_ckpt.epochs.sinks_behind import Behind
from spark_ckpt.errors import ConfigInvalid, EpochDamaged, HandoverFailed
from spark_ckpt.observability.page.facts import facts_of
from spark_ckpt.observability.page.report import going_back
from spark_ckpt.store.store import Store
from tests.outbox.outbox_kit import batch


def committed(store, point, epoch, number, base, rows=2):
    manifest = Manifest(
        job="orders", epoch=epoch, incarnation=point.incarnation, attempt=f"a{epoch}", base=base, previous=epoch - 1,
        created_ms=epoch * 1000, reason="batch", spark_batch=batch(number), rows_out=rows,
        outputs={sink: StagedOutput(sink=sink, rows=rows) for sink in ("gold", "alerts")},
    )  # fmt: skip
    store.log.commit_epoch(manifest)


def acknowledged(store, point, epoch, *sinks):
    store.log.record_acks(point.incarnation, [SinkAck(sink=sink, epoch=epoch) for sink in sinks])


@pytest.fixture
def opened(tmp_path):
    return Store.open(str(tmp_path / "store"), "orders", kind="outbox")


@pytest.fixture
def empty(opened):
    return opened.location.uri


@pytest.fixture
def store(opened):
    """Return a store with one batch, as a killed program leaves it."""
    committed(opened, opened.log.begin_incarnation(Holder(host="here")), 1, 7, 0)
    return opened.location.uri


@pytest.fixture
def branched(opened):
    """Create batches 0 to 2; the query was rolled back to batch 0; a sink lacks the newest batch."""
    log = opened.log
    point = log.begin_incarnation(Holder(host="here"))
    for epoch in (1, 2, 3):
        committed(opened, point, epoch, epoch - 1, epoch - 1)
        acknowledged(opened, point, epoch, "gold", "alerts")
    point = log.begin_incarnation(Holder(host="here"), 1, takeover=True)
    committed(opened, point, 4, 1, 1)
    acknowledged(opened, point, 4, "gold")
    return opened.location.uri


def words(text):
    return set(re.findall(r"[a-z]+", text.lower()))


LOOKS = (
    ("list",),
    ("show",),
    ("verify",),
    ("verify", "--deep"),
    ("restore", "latest", "--dry-run"),
    ("restore", "0", "--dry-run"),
    ("restore", "0"),
    ("savepoint", "add", "before"),
    ("savepoint", "list"),
    ("line",),
    ("lease",),
    ("handover",),
    ("accept-loss", "--epoch", "9"),
    ("state", "totals"),
    ("diff", "totals", "1", "2"),
    ("rescale", "totals", "--key-groups", "4"),
    ("bootstrap", "totals", "--of", "sums"),
)


ELSEWHERE = {"ui", "report", "doctor"}
"""Commands with their own tests of outboxes: the page's facts below, `doctor` in test_doctor.py."""
WITHOUT_A_STORE = {"explain", "connectors", "jars", "prepare"}


def test_every_command_that_reads_a_store_is_tried_on_an_outbox():
    assert {look[0] for look in LOOKS} | ELSEWHERE | WITHOUT_A_STORE == {verb.name for verb in OWN}


@pytest.mark.parametrize("which", ["empty", "store", "branched"])
@pytest.mark.parametrize("look", LOOKS, ids=" ".join)
def test_a_command_names_the_outbox_and_no_job(which, look, command, request):
    place = request.getfixturevalue(which)
    at = 2 if look[0] == "savepoint" else 1
    printed = command(*look[:at], place, *look[at:])
    text = (printed.out + printed.err).replace(place, "STORE")
    assert not words(text) & {"job", "jobs"}
    assert "Traceback" not in text


@pytest.fixture
def damaged(opened):
    """Return a store whose only epoch, which no sink has, lacks a staged file."""
    point = opened.log.begin_incarnation(Holder(host="here"))
    file = StagedFileRecord(path="gone.parquet", size_bytes=1, rows=2, lane=0, batch=0, task=0, part=0)
    manifest = Manifest(
        job="orders", epoch=1, incarnation=point.incarnation, attempt="a1", created_ms=0, reason="batch",
        spark_batch=batch(7), rows_out=2, outputs={"gold": StagedOutput(sink="gold", files=(file,), rows=2)},
    )  # fmt: skip
    opened.log.commit_epoch(manifest)
    return opened.location.uri


@pytest.mark.parametrize("look", [("restore", "1"), ("restore", "latest"), ("savepoint", "add", "s")], ids=" ".join)
def test_the_advice_of_a_damaged_epoch_is_a_start_of_the_query(damaged, look, command):
    at = 2 if look[0] == "savepoint" else 1
    refused = command(*look[:at], damaged, *look[at:])
    assert refused.code == EpochDamaged.exit_code
    hint = refused.err.partition("next: ")[2]
    assert not words(hint) & {"job"}
    assert "out.start(writer, restore=" in hint
    assert "spark-ckpt rewind plan --outbox STORE" in hint


def test_the_advice_of_a_table_from_a_backup_is_a_start_of_the_query(branched):
    error = refusal_of(Store.open(branched, "orders", kind="outbox"), [Behind("gold", 0, 3)])
    assert error is not None
    assert not words(error.hint) & {"job"}
    assert "out.start(writer, restore=" in error.hint
    assert "rewind the query to" in error.hint


def test_a_restore_names_the_batch_of_its_epoch(branched, command):
    printed = command("restore", branched, "2", "--dry-run").out
    assert printed.startswith("outbox")
    assert (
        "rewind the query to batch 1 (spark-ckpt rewind plan --outbox STORE), then out.start(writer, restore=2)"
        in printed
    )
    assert "the query produces these rows again" in printed


def test_a_savepoint_of_an_outbox_names_the_batch_of_its_epoch(branched, command):
    printed = command("savepoint", "add", branched, "before", "--epoch", "1").out
    assert "rewind the query to batch 0" in printed
    assert "out.start(writer)" in printed


@pytest.mark.parametrize("look", [look for look in LOOKS if look[0] in ("state", "diff", "rescale", "bootstrap")])
def test_a_command_about_state_names_the_place_of_the_querys_state(store, command, look):
    refused = command(look[0], store, *look[1:])
    assert refused.code == ConfigInvalid.exit_code
    assert "statestore" in refused.err
    assert len(Store.open(store, "orders", kind="outbox").log.state().epochs) == 1


def test_a_handover_says_that_the_newest_driver_wins(store, command):
    refused = command("handover", store)
    assert refused.code == HandoverFailed.exit_code
    assert "CKPT_FENCED" in refused.err


def test_the_newest_driver_is_shown_with_its_begin_and_without_a_lease(branched, command):
    listed = command("list", branched).out
    assert "lease" not in listed
    assert re.search(r"driver .*began", listed)


def test_a_query_that_waits_for_rows_has_its_driver_in_json_as_in_text(branched, opened, command, monkeypatch):
    """It renews no lease while it waits."""
    later = opened.log.state().lease_expires_ms + 1
    monkeypatch.setattr("spark_ckpt.cli.list.wall_ms", lambda: later)
    assert "none" not in command("list", branched).out.splitlines()[2]
    assert command("list", branched, "--json").json["driver"]["holds_lease"]
    opened.log.release(opened.log.state().incarnation, "stopped")
    assert not command("list", branched, "--json").json["driver"]["holds_lease"]


def test_the_page_has_the_rate_of_rows_out_since_an_outbox_counts_no_input(branched):
    """Epochs 1 and 4 are in the branch, 3 s apart."""
    facts = facts_of(Store.open(branched, "orders", kind="outbox"), 10_000)
    assert facts["health"]["rows_per_second"] == pytest.approx(2 / 3, abs=0.05)


def test_a_closed_outbox_has_no_driver(opened, store, command):
    opened.log.release(opened.log.state().incarnation, "stopped")
    assert command("list", store).out.splitlines()[2].startswith("driver  none; the last was")
    facts = facts_of(Store.open(store, "orders", kind="outbox"), 10_000)
    assert not facts["driver"]["holds_lease"]


def test_the_doctor_names_the_step_that_makes_the_first_epoch(empty, command):
    found = command("doctor", "--store", empty, "--json").json["findings"]
    (newest,) = [each for each in found if each["check"] == "newest epoch"]
    assert newest["next"] == "start the query; its next batch is the first epoch"


def test_the_page_has_the_kind_and_the_batch_of_each_epoch(branched):
    facts = facts_of(Store.open(branched, "orders", kind="outbox"), 10_000)
    at = facts["columns"].index("batch")
    assert facts["kind"] == "outbox"
    assert [row[at] for row in facts["epochs"]] == [0, 1, 2, 1]
    back = going_back(Store.open(branched, "orders", kind="outbox"), 2)
    assert "out.start(writer, restore=2)" in back["call"]
    assert not words(json.dumps(back)) & {"job", "operators", "sources"}


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
