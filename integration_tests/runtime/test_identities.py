"""A job with another table or folder: refused before any commit, corrected without a repair, or confirmed."""

from __future__ import annotations

import shutil

import pytest
from deltalake import DeltaTable
from runtime_kit import ENOUGH_S, Bench, drain, totals
from spark_ckpt_delta import DeltaSource

import spark_ckpt as ckpt
from spark_ckpt.epochs.records import SinkIdentity
from spark_ckpt.errors import PublishFailed
from spark_ckpt.store.store import Store

pytestmark = pytest.mark.spark


def a_job(bench: Bench, table: str = "out", folder: str = "in", **settings: object) -> ckpt.Job:
    job = bench.job(**settings)
    job.source("in", bench.files_source(folder)).to(bench.sink(table), name="out")
    return job


def decided(bench: Bench) -> tuple[int, int]:
    """(highest epoch, newest incarnation) in the log."""
    log_state = Store.open(str(bench.folder / "store"), "job").log.state()
    return log_state.last, log_state.incarnation


def refused(job: ckpt.Job, **arguments: object) -> str:
    with pytest.raises(ckpt.CkptError) as caught:
        drain_with(job, **arguments)
    assert caught.value.condition == "CKPT_IDENTITY_CHANGED", str(caught.value)
    return str(caught.value)


def drain_with(job: ckpt.Job, **arguments: object) -> ckpt.Run:
    run = job.start(availableNow=True, **arguments)
    assert run.awaitTermination(ENOUGH_S)
    return run


def test_a_mistyped_table_is_refused_and_the_right_one_continues_without_a_repair(bench: Bench) -> None:
    bench.put(("a", 1))
    drain(a_job(bench))
    bench.put(("b", 2))
    bench.sink("other").stage(bench.files_source().read(bench.spark, bench.files_source().start(bench.spark)).schema)
    before = decided(bench)

    for table in ("otu", "other"):
        text = refused(a_job(bench, table))
        assert f"path {bench.folder / table}" in text
        assert f"path {bench.folder / 'out'}" in text
        assert "accept_new_sink='out'" in text

    assert decided(bench) == before
    assert not (bench.folder / "otu").exists(), "a mistyped path makes no table"
    drain(a_job(bench))
    assert bench.values() == [("a", 1), ("b", 2)]


@pytest.mark.long  # in the gate: tests/simulator/test_spark_operated.py
def test_a_confirmed_new_table_gets_all_later_rows_and_needs_one_confirmation(bench: Bench) -> None:
    bench.put(("a", 1))
    drain(a_job(bench))
    bench.put(("b", 2))
    drain_with(a_job(bench, "new"), accept_new_sink="out")
    bench.put(("c", 3))
    drain(a_job(bench, "new"))
    assert (bench.values("out"), bench.values("new")) == ([("a", 1)], [("b", 2), ("c", 3)])

    text = refused(a_job(bench, "out"))
    assert f"recorded: kind delta, path {bench.folder / 'new'}" in text
    bench.put(("d", 4))
    drain(a_job(bench, "out", accept_new_sink="out"))  # the setting is the argument's conf key
    drain(a_job(bench, "out"))
    assert (bench.values("out"), bench.values("new")) == ([("a", 1), ("d", 4)], [("b", 2), ("c", 3)])


def test_a_re_created_table_is_reported_as_such_and_can_be_confirmed(bench: Bench) -> None:
    bench.put(("a", 1))
    drain(a_job(bench))
    shutil.rmtree(bench.folder / "out")
    bench.put(("b", 2))

    assert "table id (none yet)" in refused(a_job(bench))
    assert not (bench.folder / "out").exists()
    drain_with(a_job(bench), accept_new_sink=["out"])
    drain(a_job(bench))
    assert bench.values() == [("b", 2)]


def _away(self: object, output: object) -> None:
    raise PublishFailed("the table is away")


def short(bench: Bench, table: str = "out", **settings: object) -> ckpt.Job:
    return a_job(bench, table, publish_timeout="1 second", max_failed_epochs=0, **settings)


@pytest.mark.long  # in the gate: tests/simulator/test_spark_operated.py
def test_a_new_table_is_refused_while_an_epoch_is_unpublished_and_not_undone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put(("a", 1))
    drain(a_job(bench))
    bench.put(("b", 2))
    with monkeypatch.context() as patched:
        patched.setattr("spark_ckpt_delta.publisher.DeltalakePublisher.publish", _away)
        with pytest.raises(ckpt.CkptError, match="the table is away"):
            drain(short(bench))
    owed, _ = decided(bench)
    before = decided(bench)

    text = refused(short(bench, "new"), accept_new_sink="out")
    assert f"the rows of committed epochs: {owed}" in text
    assert decided(bench) == before
    shutil.rmtree(bench.folder / "out")
    assert f"job.start(restore={owed - 1}, accept_new_sink='out')" in refused(short(bench), accept_new_sink="out")

    drain_with(short(bench), restore=owed - 1, accept_new_sink="out")
    assert bench.values() == [("b", 2)], "the rows that the table lacked are produced again"


@pytest.mark.long  # in the gate: tests/store/test_identity_decisions.py
def test_a_confirmed_moved_table_continues_and_gets_its_unpublished_epochs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put(("a", 1))
    drain(a_job(bench))
    bench.put(("b", 2))
    with monkeypatch.context() as patched:
        patched.setattr("spark_ckpt_delta.publisher.DeltalakePublisher.publish", _away)
        with pytest.raises(ckpt.CkptError, match="the table is away"):
            drain(short(bench))
    (bench.folder / "out").rename(bench.folder / "moved")

    assert "accept_moved='out'" in refused(a_job(bench, "moved"))
    drain_with(a_job(bench, "moved"), accept_moved="out")
    bench.put(("c", 3))
    drain(a_job(bench, "moved"))
    assert bench.values("moved") == [("a", 1), ("b", 2), ("c", 3)]


@pytest.mark.long  # in the gate: tests/store/test_identity_decisions.py
def test_swapped_names_of_two_tables_are_refused_and_may_be_confirmed(bench: Bench) -> None:
    def job(x: str, y: str) -> ckpt.Job:
        one = bench.job()
        rows = one.source("in", bench.files_source())
        rows.to(bench.sink(x), name="x")
        rows.to(bench.sink(y), name="y")
        return one

    bench.put(("a", 1))
    drain(job("t1", "t2"))
    bench.put(("b", 2))
    assert "sink 'x' is now what 'y' was" in refused(job("t2", "t1"))
    drain_with(job("t2", "t1"), accept_new_sink=["x", "y"])
    drain(job("t2", "t1"))
    assert bench.values("t1") == bench.values("t2") == [("a", 1), ("b", 2)]


@pytest.mark.long  # in the gate: tests/store/test_identity_decisions.py
def test_another_folder_is_refused_and_confirmed_as_new_or_as_moved(bench: Bench) -> None:
    def job(folder: str) -> ckpt.Job:
        one = bench.job()
        totals(one.source("in", bench.files_source(folder))).to(bench.sink(), name="out")
        return one

    bench.put(("a", 1))
    drain(job("in"))
    bench.put(("a", 10), into="wrong")
    before = decided(bench)
    assert f"found: kind files, path {bench.folder / 'wrong'}" in refused(job("wrong"))
    assert decided(bench) == before
    drain(job("in"))

    drain_with(job("wrong"), accept_new_source="in")
    drain(job("wrong"))
    assert bench.values() == [("a", 1), ("a", 11)], "the state continues, the new folder is read from its start"

    (bench.folder / "wrong").rename(bench.folder / "moved")
    bench.put(("a", 100), into="moved")
    refused(job("moved"))
    drain_with(job("moved"), accept_moved="in")
    assert bench.values() == [("a", 1), ("a", 11), ("a", 111)]


@pytest.mark.long  # in the gate: tests/store/test_identity_decisions.py
def test_another_source_table_is_refused_and_can_be_confirmed(bench: Bench) -> None:
    def job(table: str) -> ckpt.Job:
        one = bench.job()
        one.source("in", DeltaSource(str(bench.folder / table))).to(bench.sink(), name="out")
        return one

    for table, value in (("first", 1), ("second", 2)):
        bench.put(("a", value), into=f"to {table}")
        feeder = ckpt.Job(bench.spark, f"feed-{table}", str(bench.folder / f"feed {table}"))
        feeder.source("in", bench.files_source(f"to {table}")).to(bench.sink(table), name="out")
        drain(feeder)
    drain(job("first"))
    text = refused(job("second"))
    assert f"table id {DeltaTable(str(bench.folder / 'first')).metadata().id}" in text
    drain(job("first"))
    drain_with(job("second"), accept_new_source="in")
    drain(job("second"))
    assert bench.values() == [("a", 1), ("a", 2)]


@pytest.mark.long  # in the gate: tests/store/test_identity_decisions.py
def test_a_store_without_identities_records_them_with_its_next_epoch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put(("a", 1))
    with monkeypatch.context() as patched:
        patched.setattr("spark_ckpt.endpoints.identities.parts_of", lambda connector, spark: {})
        drain(a_job(bench))
    log = bench.store().log
    assert {each.epoch: each.sink_identities for each in map(log.manifest, log.state().by_id)} == {1: {}, 2: {}}
    bench.put(("b", 2))
    drain(a_job(bench))
    log = bench.store().log
    table = DeltaTable(str(bench.folder / "out")).metadata().id
    parts = {"kind": "delta", "path": str(bench.folder / "out"), "table id": str(table)}
    assert log.manifest(log.state().latest).sink_identities == {"out": SinkIdentity(parts=parts)}
    refused(a_job(bench, "new"))
