"""A query without state becomes an epoch without a JVM: every source continues right after its last read offset."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from spark_ckpt.epochs.restore import ADOPTING, LATEST
from spark_ckpt.errors import AdoptionRefused, EpochNotFound, StoreForeign
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.holder import current_holder
from spark_rewind.adopt.adopting import adopt
from spark_rewind.adopt.plan import AdoptRequest
from tests.adopt.adopt_kit import JOB, adopted, clicks, no_session, opened, target
from tests.rewind.rewind_kit import WrittenQuery, WrittenTable, content_of


def test_the_epoch_holds_cursor_and_identity_of_each_source(tmp_path):
    query, table = WrittenQuery(tmp_path / "query"), WrittenTable(tmp_path / "bronze")
    query.batch({"clicks": {"0": 5, "1": 7}}, table.at(2))
    query.batch({"clicks": {"0": 12, "1": 9}}, table.at(4, index=1))
    done = adopted(query, tmp_path, "clicks=0", "bronze=1")
    manifest = opened(tmp_path).log.manifest(1)
    assert done.epoch == 1
    assert manifest.cursors["clicks"] == {"clicks": {"0": 12, "1": 9}}
    read_on = {name: manifest.cursors["bronze"][name] for name in ("table", "version", "index", "snapshot")}
    assert read_on == {"table": table.id, "version": 4, "index": 2, "snapshot": False}
    assert manifest.source_identities["bronze"] == {"kind": "delta", "path": "", "table id": table.id}
    assert set(manifest.source_identities["clicks"]) == {"kind", "cluster", "topic clicks"}
    assert (manifest.reason, manifest.job, manifest.outputs) == ("adopt", JOB, {})


def test_watermarks_are_those_of_the_next_batch(tmp_path):
    """It has the watermark after the last batch, and drops late rows by the one of the last batch."""
    query = clicks(WrittenQuery(tmp_path / "query"), 10, 20)
    offsets, commit = query.folder / "offsets" / "1", query.folder / "commits" / "1"
    offsets.write_text(offsets.read_text().replace('"batchWatermarkMs": 0', '"batchWatermarkMs": 5000'))
    commit.write_text('v1\n{"nextBatchWatermarkMs":8000}')
    adopted(query, tmp_path)
    manifest = opened(tmp_path).log.manifest(1)
    assert (manifest.watermark_ms, manifest.late_watermark_ms) == (8000, 5000)


def test_the_checkpoint_stays_as_it_is(tmp_path):
    query = clicks(WrittenQuery(tmp_path / "query"), 10, 20)
    before = content_of(query.folder)
    adopted(query, tmp_path)
    assert content_of(query.folder) == before


def test_a_job_continues_from_the_epoch(tmp_path):
    adopted(clicks(WrittenQuery(tmp_path / "query"), 10), tmp_path)
    point = opened(tmp_path).log.begin_incarnation(current_holder(JOB), LATEST)
    assert (point.manifest.epoch, point.incarnation, point.unpublished, point.dropped) == (1, 2, {}, {})


@pytest.mark.parametrize("found", ["a file", "another store", "its own epoch"])
def test_a_store_that_is_not_new_is_refused_and_stays_as_it_is(tmp_path, found):
    query = clicks(WrittenQuery(tmp_path / "query"), 10)
    store = tmp_path / "store"
    if found == "a file":
        store.mkdir()
        (store / "notes.txt").write_text("mine")
    elif found == "its own epoch":
        adopted(query, tmp_path)
    else:
        log = opened(tmp_path).log
        log.release(log.begin_incarnation(current_holder(JOB)).incarnation)
    before = content_of(store)
    with pytest.raises(StoreForeign, match=r"not empty|already, as epoch 1"):
        adopted(query, tmp_path)
    assert content_of(store) == before


def interrupted(tmp_path, monkeypatch) -> WrittenQuery:
    """The program is killed before the epoch commits, without clean-up."""
    query = clicks(WrittenQuery(tmp_path / "query"), 10)
    monkeypatch.setattr("spark_rewind.adopt.adopting.undo", lambda *_: None)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EpochLog, "commit_epoch", killed)
        with pytest.raises(KeyboardInterrupt):
            adopted(query, tmp_path)
    return query


def test_a_job_does_not_start_empty_after_an_interrupted_adoption(tmp_path, monkeypatch):
    interrupted(tmp_path, monkeypatch)
    log = opened(tmp_path).log
    log.release(log.state().incarnation)
    with pytest.raises(EpochNotFound, match="was being adopted") as refused:
        log.begin_incarnation(current_holder(JOB), LATEST)
    assert "spark-ckpt adopt" in refused.value.hint
    assert log.state().incarnation == 1


def test_an_interrupted_adoption_is_completed_by_the_next(tmp_path, monkeypatch):
    query = interrupted(tmp_path, monkeypatch)
    log = opened(tmp_path).log
    log.release(log.state().incarnation)
    assert adopted(query, tmp_path).epoch == 1
    assert opened(tmp_path).log.begin_incarnation(current_holder(JOB), LATEST).manifest.epoch == 1


def test_a_job_starts_empty_after_an_interrupted_adoption_if_the_user_confirms(tmp_path, monkeypatch):
    interrupted(tmp_path, monkeypatch)
    log = opened(tmp_path).log
    log.release(log.state().incarnation)
    assert log.begin_incarnation(current_holder(JOB), 0).manifest.epoch == 0


def test_no_name_of_a_job_is_taken_for_an_adoption(tmp_path):
    log = opened(tmp_path).log
    log.release(log.begin_incarnation(current_holder(JOB), LATEST).incarnation)
    assert log.begin_incarnation(current_holder(JOB), LATEST).incarnation == 2
    assert " " in ADOPTING


def test_a_failed_adoption_leaves_no_files(tmp_path, monkeypatch):
    query = clicks(WrittenQuery(tmp_path / "query"), 10)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EpochLog, "commit_epoch", full)
    with pytest.raises(OSError, match="No space"):
        adopted(query, tmp_path)
    assert not (tmp_path / "store").exists()


def test_a_query_that_runs_during_the_adoption_is_found(tmp_path, monkeypatch):
    query = clicks(WrittenQuery(tmp_path / "query"), 10)
    begin = EpochLog.begin_incarnation

    def meanwhile(self, *arguments, **named):
        clicks(query, 20)
        return begin(self, *arguments, **named)

    monkeypatch.setattr(EpochLog, "begin_incarnation", meanwhile)
    with pytest.raises(Exception, match="runs: its checkpoint has changed"):
        adopted(query, tmp_path)
    assert not (tmp_path / "store").exists()


def test_a_query_that_writes_while_it_is_watched_is_refused(tmp_path):
    """Its batch is not in the logs yet: after the adoption, query and job would write the same rows."""
    query = clicks(WrittenQuery(tmp_path / "query"), 10)

    def meanwhile() -> None:
        (query.folder / "state").mkdir()
        (query.folder / "state" / "2.delta").touch()

    request = AdoptRequest(str(query.folder), ["clicks"])
    with pytest.raises(AdoptionRefused, match=r"is running: .*2\.delta was written") as refused:
        adopt(request, target(tmp_path), no_session, meanwhile)
    assert refused.value.hint == "stop the query, then adopt; nothing was changed"
    assert not (tmp_path / "store").exists()


def test_a_store_that_another_command_fills_while_the_query_is_watched_is_refused(tmp_path):
    """Else the store would be restored to its beginning, and the query adopted a second time."""
    query = clicks(WrittenQuery(tmp_path / "query"), 10)

    def meanwhile() -> None:
        adopted(query, tmp_path)

    with pytest.raises(StoreForeign, match="was adopted into this store already, as epoch 1"):
        adopt(AdoptRequest(str(query.folder), ["clicks"]), target(tmp_path), no_session, meanwhile)
    log_state = opened(tmp_path).log.state()
    assert (log_state.latest, log_state.incarnation) == (1, 1)


def test_an_adoption_needs_neither_java_nor_pyspark(tmp_path):
    query = clicks(WrittenQuery(tmp_path / "query"), 10, 20)
    code = (
        "import sys\nfrom spark_ckpt.cli.app import exit_code\ncode = exit_code(sys.argv[1:])\n"
        "assert not {'py4j', 'pyspark.sql'} & sys.modules.keys()\nsys.exit(code)"
    )
    arguments = ["adopt", str(query.folder), str(tmp_path / "store"), "--job", JOB, "--source", "clicks", "--json"]
    arguments += ["--watch-s", "0"]
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    adoption = json.loads(run.stdout)
    assert (adoption["batch"], adoption["epoch"]) == (1, 1)
    assert adoption["sources"] == {"clicks": {"kind": "kafka", "cursor": {"clicks": {"0": 20, "1": 7}}}}
