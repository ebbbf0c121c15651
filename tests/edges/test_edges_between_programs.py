"""The source of an edge refuses other stores, undone rows and damaged files, and registers at the sender."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType
from sender_store import EDGE, ELSEWHERE, SendingStore

import spark_ckpt as ckpt
from spark_ckpt.cli.readers import readers_of
from spark_ckpt.cli.restore import restore
from spark_ckpt.cli.store_check import store_findings
from spark_ckpt.connector import Cursor, Sink
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.query.inputs import InputRetention, check_inputs, first_position, with_next_step, with_source
from spark_ckpt.epochs.identity import Confirmed
from spark_ckpt.epochs.records import FORMAT, Manifest
from spark_ckpt.epochs.retention import Retention, RetentionReport, kept_epochs
from spark_ckpt.errors import (
    CkptError,
    ConfigInvalid,
    EpochDamaged,
    FormatUnknown,
    GraphInvalid,
    RowsLost,
    SourceInvalid,
    SourceUndone,
    StoreUnreachable,
)
from spark_ckpt.program_edges.segments import SegmentReader
from spark_ckpt.program_edges.sink import EdgeSink
from spark_ckpt.program_edges.source import EdgeSource
from spark_ckpt.store.location import Location
from spark_ckpt.store.store import Store
from spark_ckpt.testing import PythonReading
from spark_ckpt.testing.sources import MemoryFolder
from tests.store.store_world import flip_in_body

NO_SPARK = cast("SparkSession", None)


@pytest.fixture
def sender(tmp_path: Path) -> SendingStore:
    return SendingStore(tmp_path / "orders")


def edge(sender: SendingStore, **options: object) -> EdgeSource:
    return ckpt.Edge(EDGE, sender.store.location.uri, **options)  # type: ignore[call-overload, no-any-return]


def read(source: EdgeSource, cursor: object = None) -> list[dict[str, object]]:
    reading = PythonReading()
    batches = reading.batches(source, cursor or source.start(reading.session))  # type: ignore[arg-type]
    return [row for batch in batches for row in batch.rows]


# -- at the start ----------------------------------------------------------------------------------------------------------


def test_a_place_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceInvalid, match="there is no store"):
        ckpt.Edge(EDGE, str(tmp_path / "nothing")).check(NO_SPARK)


def test_an_edge_that_the_sender_does_not_have_is_refused_with_those_it_has(sender: SendingStore) -> None:
    with pytest.raises(SourceInvalid, match=f"no edge 'total'; its edges: {EDGE}"):
        ckpt.Edge("total", sender.store.location.uri).check(NO_SPARK)


def test_a_sink_that_is_no_edge_is_refused(sender: SendingStore) -> None:
    sender.store.staged("table").location.write_bytes("x", b"")
    with pytest.raises(SourceInvalid, match="no edge 'table'"):
        ckpt.Edge("table", sender.store.location.uri).check(NO_SPARK)


def test_the_store_of_an_outbox_is_refused(tmp_path: Path) -> None:
    Store.open(str(tmp_path / "box"), "gold", kind="outbox")
    with pytest.raises(SourceInvalid, match="outbox 'gold'"):
        ckpt.Edge(EDGE, str(tmp_path / "box")).check(NO_SPARK)


def test_the_store_of_another_job_is_refused(sender: SendingStore) -> None:
    edge(sender, job="orders").check(NO_SPARK)
    with pytest.raises(SourceInvalid, match="job 'orders', not of 'payments'"):
        edge(sender, job="payments").check(NO_SPARK)


def test_a_newer_format_is_refused_as_such(sender: SendingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ckpt.store.log_table.FORMAT", FORMAT + 1)
    sender.commit(sender.rows(1))
    monkeypatch.undo()
    with pytest.raises(FormatUnknown):
        edge(sender).check(NO_SPARK)


def test_a_sink_has_the_edges_name() -> None:
    assert EdgeSink(EDGE).named(None) == EDGE
    with pytest.raises(GraphInvalid):
        EdgeSink(EDGE).named("out")


def test_an_outbox_refuses_an_edge(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="between jobs"):
        ckpt.Outbox(str(tmp_path), name="gold", sinks={"totals": cast("Sink", ckpt.Edge(EDGE))})


# -- rows ------------------------------------------------------------------------------------------------------------------


def test_a_later_start_has_only_later_rows(sender: SendingStore) -> None:
    sender.commit(sender.rows(2))
    source = edge(sender, start="latest")
    cursor = source.start(NO_SPARK)
    fresh = sender.rows(2)
    sender.commit(fresh)
    assert read(source, cursor) == fresh


def test_columns_that_the_sender_adds_are_null_in_older_rows(sender: SendingStore) -> None:
    sender.commit([{"id": 1, "name": "a"}])
    sender.declare(id=LongType(), name=StringType(), size=LongType())
    sender.commit([{"id": 2, "name": "b", "size": 7}])
    assert read(edge(sender)) == [{"id": 1, "name": "a", "size": None}, {"id": 2, "name": "b", "size": 7}]


def test_a_type_that_does_not_fit_is_refused(sender: SendingStore) -> None:
    sender.commit([{"id": 1, "name": "a"}])
    sender.declare(id=LongType(), name=LongType())
    with pytest.raises(SourceInvalid, match="name"):
        read(edge(sender))


def test_unread_rows_are_counted(sender: SendingStore) -> None:
    source = edge(sender)
    start = source.start(NO_SPARK)
    sender.commit(sender.rows(2), sender.rows(3))
    assert source.lag(start, source.end(NO_SPARK)) == 5


def refuses_a_damaged_file(sender: SendingStore) -> bool:
    """The verdict: with one changed byte in a file, none of its rows is read."""
    epoch = sender.commit(sender.rows(100))
    [path] = sender.files(epoch)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    try:
        read(edge(sender))
    except SourceInvalid:
        return True
    except Exception:  # noqa: BLE001 - a decoder that stumbles by luck is no verification
        return False
    return False


def test_a_damaged_file_is_refused(sender: SendingStore) -> None:
    assert refuses_a_damaged_file(sender)


def test_a_file_that_is_read_without_verification_is_found(
    sender: SendingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unverified(location: Location, file: object, rows: int, **where: object) -> pa.Table:
        return pa.table({"id": [1], "name": ["as if it were whole"]})

    monkeypatch.setattr(Location, "read_committed", unverified)
    assert not refuses_a_damaged_file(sender)


def test_a_missing_file_is_refused(sender: SendingStore) -> None:
    [path] = sender.files(sender.commit(sender.rows(1)))
    path.unlink()
    with pytest.raises(SourceInvalid):
        read(edge(sender))


def test_tasks_get_neither_log_nor_planner(sender: SendingStore) -> None:
    from spark_ckpt.spark_internals.shipping import shipped

    sender.commit(sender.rows(1))
    reading = PythonReading()
    source = edge(sender)
    stream = source.read(reading.session, source.start(reading.session))
    assert isinstance(shipped(stream.reader()), SegmentReader)  # type: ignore[operator]


# -- a sender that is restored ------------------------------------------------------------------------------------------------


class Own:
    """The reader's own job: an epoch for each cursor."""

    def __init__(self, folder: Path, source: EdgeSource) -> None:
        self.store = Store.open(str(folder), "reader")
        self.store.log.begin_incarnation(ELSEWHERE, "latest", takeover=True)
        source.remember_in(self.store.location.child("sources", "totals"))
        node = SimpleNamespace(name="totals", source=source)
        self.source = source
        self.plan = cast(
            "JobPlan",
            SimpleNamespace(sources=[node], store=self.store, job="reader", spark=NO_SPARK, confirmed=Confirmed()),
        )

    def commit(self) -> Manifest:
        """An epoch that has read everything."""
        state = self.store.log.state()
        manifest = Manifest(
            job="reader",
            epoch=state.last + 1,
            incarnation=state.incarnation,
            attempt=f"a{state.last}",
            base=state.latest,
            previous=state.last,
            created_ms=1,
            cursors={"totals": dict(self.source.end(NO_SPARK))},  # type: ignore[dict-item]
        )
        self.store.log.commit_epoch(manifest)
        return manifest


def test_undone_rows_are_refused_with_the_newest_epoch_to_restore(
    sender: SendingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Own(tmp_path / "reader", edge(sender))
    for _ in range(4):
        sender.commit(sender.rows(1))
        newest = own.commit()
    sender.begin(2)
    with pytest.raises(SourceUndone) as caught:
        check_inputs(own.plan, newest)
    assert caught.value.condition == "CKPT_SOURCE_UNDONE"
    assert {name: caught.value.context[name] for name in ("source", "restore", "edge")} == {
        "source": "totals",
        "restore": 2,
        "edge": EDGE,
    }
    check_inputs(own.plan, own.store.log.manifest(2))
    whole = own.store.log.manifest

    def without_the_second(epoch: int) -> Manifest:
        if epoch == 2:
            raise EpochDamaged("no")
        return whole(epoch)

    monkeypatch.setattr(own.store.log, "manifest", without_the_second)
    with pytest.raises(SourceUndone) as damaged:
        check_inputs(own.plan, newest)
    assert damaged.value.context["restore"] == 1


def test_rows_that_are_undone_while_the_query_runs_are_refused_with_the_same_advice(
    sender: SendingStore, tmp_path: Path
) -> None:
    own = Own(tmp_path / "reader", edge(sender))
    for _ in range(3):
        sender.commit(sender.rows(1))
        own.commit()
    sender.begin(1)
    advised = with_next_step(SourceUndone("from the planner"), own.plan)
    assert advised.context["restore"] == 1
    other = CkptError("another one")
    assert with_next_step(other, own.plan) is other


def test_rows_that_retention_deleted_are_refused_with_the_call_that_continues_behind_them(
    sender: SendingStore, tmp_path: Path
) -> None:
    own = Own(tmp_path / "reader", edge(sender))
    sender.commit(sender.rows(1))
    base = own.commit()
    for _ in range(4):
        sender.commit(sender.rows(1))
    sender.retain()
    kept = sender.rows(2)
    sender.commit(kept)

    with pytest.raises(RowsLost, match=f"deleted rows of edge '{EDGE}' after epoch 1") as caught:
        own.source.read(NO_SPARK, base.cursors["totals"])

    assert "job.start(restore=1, accept_lost_rows='totals')" in with_source(caught.value, own.plan, base, 1).hint
    past = own.source.past_lost(NO_SPARK, base.cursors["totals"])
    assert read(own.source, past)[-2:] == kept
    assert own.source.past_lost(NO_SPARK, past) == past


@dataclass(frozen=True)
class Shortened:
    """A source whose first rows are gone."""

    oldest: int

    def past_lost(self, spark: object, cursor: Cursor) -> Cursor:
        return {"n": max(self.oldest, cast("int", cursor["n"]))}


def test_the_call_that_continues_behind_lost_rows_names_every_source_that_has_lost_some() -> None:
    # A start that confirms one of them is refused for the other: the call of that error must not lead back.
    sources = {"clicks": Shortened(5), "orders": Shortened(7), "users": Shortened(0)}
    nodes = [SimpleNamespace(name=name, source=source) for name, source in sources.items()]
    plan = cast("JobPlan", SimpleNamespace(sources=nodes, spark=NO_SPARK, confirmed=Confirmed()))
    base = Manifest(
        job="reader", epoch=1, incarnation=1, attempt="a", created_ms=1, cursors={name: {"n": 3} for name in sources}
    )

    hint = with_source(RowsLost("orders begins at 7"), plan, base).hint

    assert "job.start(accept_lost_rows=['clicks', 'orders'])" in hint
    assert "--conf spark.ckpt.accept.lost.rows=clicks,orders" in hint


@pytest.mark.parametrize("calls", [1, 2])
def test_a_reader_of_an_idle_edge_goes_on_while_the_sender_deletes_epochs(
    sender: SendingStore, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """It asks the oldest kept epoch if rows are missing: the one that the sender deletes next, between two of its reads."""
    sender.commit(sender.rows(1))
    log = edge(sender).open_log()
    position = log.end()
    for _ in range(4):
        sender.commit()
    sender.retain(2)
    manifest, left = log.store.log.manifest, [None] * calls

    def overtaken(epoch: int) -> Manifest:
        if left:
            left.pop()
            sender.commit()
            sender.retain()
        return manifest(epoch)

    monkeypatch.setattr(log.store.log, "manifest", overtaken)
    log.require(position)
    fresh = sender.rows(2)
    sender.commit(fresh)
    assert not left
    assert [file.staged.rows for file in log.between(position, log.end())] == [2]


def test_a_running_reader_gets_an_error_when_its_rows_are_undone(sender: SendingStore) -> None:
    sender.commit(sender.rows(1))
    sender.commit(sender.rows(1))
    source = edge(sender)
    cursor = source.end(NO_SPARK)
    sender.begin(1)
    sender.commit(sender.rows(1))
    with pytest.raises(SourceUndone):
        read(source, cursor)


def test_a_reader_continues_on_the_new_branch(sender: SendingStore) -> None:
    sender.commit(sender.rows(1))
    source = edge(sender)
    cursor = source.end(NO_SPARK)
    sender.commit(sender.rows(1))
    sender.begin(1)
    fresh = sender.rows(2)
    sender.commit(fresh)
    assert read(source, cursor) == fresh


# -- retention of the sender ---------------------------------------------------------------------------------------------------


def registered(sender: SendingStore, cursors: list[object], uri: str = "memory:") -> EdgeSource:
    source, folder = edge(sender), MemoryFolder()
    folder.uri = uri
    source.remember_in(folder)
    source.hold(cursors)  # type: ignore[arg-type]
    return source


def kept(sender: SendingStore, readers_ms: int) -> set[int]:
    state = sender.store.log.state()
    newest = sender.store.log.manifest(state.latest).rows_so_far
    return kept_epochs(state, Retention(1, readers_ms=readers_ms, slack=0), 1_700_000_000_000 + 1, newest)


def published(sender: SendingStore) -> None:
    """Acknowledge as the edge's publisher does."""
    from spark_ckpt.epochs.records import SinkAck

    state = sender.store.log.state()
    sender.store.log.record_acks(state.incarnation, [SinkAck(sink=EDGE, epoch=state.latest)])


def test_the_sender_keeps_rows_that_a_registered_reader_may_read(sender: SendingStore) -> None:
    source = edge(sender)
    cursors = []
    for _ in range(5):
        sender.commit(sender.rows(1))
        cursors.append(source.end(NO_SPARK))
    published(sender)
    assert not kept(sender, 60_000) & {1, 2, 3}
    registered(sender, [cursors[1], cursors[3]])
    assert kept(sender, 60_000) & {1, 2, 3, 4, 5} == {3, 4, 5}
    assert not kept(sender, 0) & {1, 2, 3}


def test_the_stores_retention_keeps_the_rows_of_a_registered_reader(sender: SendingStore) -> None:
    source = edge(sender)
    due = [row for _ in range(4) for row in _sent(sender)]
    registered(sender, [source.start(NO_SPARK)])
    published(sender)
    assert sender.store.retain(Retention(1, readers_ms=10**15, slack=0)).epochs == ()
    assert read(source, dict(source.start(NO_SPARK))) == due


def test_a_reader_that_dies_at_its_start_finds_its_rows_at_the_next_one(sender: SendingStore) -> None:
    """It has pinned its start without an own epoch; the sender continues and deletes epochs."""
    due = [row for _ in range(2) for row in _sent(sender)]
    source, folder = edge(sender), MemoryFolder()
    source.remember_in(folder)
    start = first_position("reader", source, NO_SPARK)
    due += [row for _ in range(2) for row in _sent(sender)]
    published(sender)
    sender.store.retain(Retention(1, readers_ms=10**15, slack=0))
    assert read(edge(sender), dict(start)) == due


def _sent(sender: SendingStore) -> list[dict[str, object]]:
    rows = list(sender.rows(1))
    sender.commit(rows)
    return rows


def test_a_reader_that_has_not_moved_writes_no_row(sender: SendingStore) -> None:
    sender.commit(sender.rows(1))
    cursor = edge(sender).end(NO_SPARK)
    source = registered(sender, [cursor])
    [before] = sender.store.log.state().readers.values()
    source.hold([cursor])
    [after] = sender.store.log.state().readers.values()
    assert after.moved_ms == before.moved_ms


def test_a_reader_stays_registered_after_retention(sender: SendingStore) -> None:
    for _ in range(3):
        sender.commit(sender.rows(1))
    registered(sender, [edge(sender).end(NO_SPARK)], "/data/reader/sources/totals")
    sender.retain()
    [entry] = Store.open(sender.store.location.uri, "orders").log.state().readers.values()
    assert (entry.row.place, entry.row.edge, entry.row.position.epoch) == ("/data/reader/sources/totals", EDGE, 3)


def test_undone_cursors_do_not_move_the_reader(sender: SendingStore) -> None:
    for _ in range(3):
        sender.commit(sender.rows(1))
    undone = edge(sender).end(NO_SPARK)
    sender.begin(1)
    registered(sender, [undone])
    assert sender.store.log.state().readers == {}


def test_the_error_of_a_reader_away_for_too_long_names_the_retention_setting(sender: SendingStore) -> None:
    sender.commit(sender.rows(1))
    cursor = edge(sender).end(NO_SPARK)
    for _ in range(3):
        sender.commit(sender.rows(1))
    sender.retain()
    with pytest.raises(SourceInvalid) as caught:
        edge(sender).check_cursor(cursor, cursor)
    assert not isinstance(caught.value, SourceUndone)
    assert "keep_for_readers" in caught.value.hint


def test_commands_name_the_reader_that_holds_epochs(sender: SendingStore) -> None:
    for _ in range(4):
        sender.commit(sender.rows(1))
    registered(sender, [edge(sender).start(NO_SPARK)], "/data/reader/sources/totals")
    log = sender.store.log
    [reader] = readers_of(log, log.state())
    assert (reader.fields["place"], reader.fields["held_from"], reader.fields["held_epochs"]) == (
        "/data/reader/sources/totals",
        1,
        4,
    )
    [finding] = [each for each in store_findings(sender.store.location.uri, {}) if each.check == f"reader of {EDGE}"]
    assert (finding.status, "/data/reader" in finding.detail) == ("warn", True)
    # `list` is what an operator looks at when the newest epoch is damaged.
    flip_in_body(Path(sender.store.location.uri), "epoch", 4)
    damaged = sender.store.reopened().log
    assert [each.entry for each in readers_of(damaged, damaged.state())] == [reader.entry]


def test_a_reader_that_has_read_all_rows_holds_no_epoch(sender: SendingStore) -> None:
    sender.commit(sender.rows(1))
    registered(sender, [edge(sender).end(NO_SPARK)])
    [finding] = [each for each in store_findings(sender.store.location.uri, {}) if each.check == f"reader of {EDGE}"]
    assert finding.status == "ok"


def test_a_job_registers_at_its_start_and_advances_when_it_deletes_epochs(sender: SendingStore, tmp_path: Path) -> None:
    own = Own(tmp_path / "reader", edge(sender))
    retention = InputRetention(own.plan)
    sender.commit(sender.rows(1))
    own.commit()
    retention.hold()
    sender.commit(sender.rows(1))
    own.commit()
    retention.hold()
    assert [entry.row.position.epoch for entry in sender.store.log.state().readers.values()] == [1]
    own.store.log.shorten(lambda state: {2})
    retention.follow(RetentionReport(epochs=(1,)))
    [entry] = sender.store.log.state().readers.values()
    assert entry.row.position.epoch == 2
    assert Path(entry.row.place) == tmp_path / "reader" / "sources" / "totals"


def test_a_sender_that_cannot_be_reached_does_not_end_the_reader(
    sender: SendingStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Own(tmp_path / "reader", edge(sender))
    sender.commit(sender.rows(1))
    own.commit()

    def away(source: object, kept: object) -> None:
        raise StoreUnreachable("the sender's disk is away")

    monkeypatch.setattr(EdgeSource, "hold", away)
    InputRetention(own.plan).hold()
    assert "the sender's disk is away" in caplog.text


def test_a_dry_run_of_a_restore_names_the_readers(sender: SendingStore, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        sender.commit(sender.rows(1))
    registered(sender, [edge(sender).end(NO_SPARK)], "/data/reader/sources/totals")
    restore([sender.store.location.uri, "1"], dry_run=True)
    assert "/data/reader/sources/totals stops with CKPT_SOURCE_UNDONE" in capsys.readouterr().out
    restore([sender.store.location.uri, "latest"], dry_run=True)
    assert "CKPT_SOURCE_UNDONE" not in capsys.readouterr().out
