"""Output of `spark-ckpt adopt`; a dry run writes nothing."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from spark_ckpt.cli.app import exit_code
from tests.adopt.adopt_kit import JOB, clicks
from tests.rewind.rewind_kit import WrittenQuery, content_of


@pytest.fixture
def query(tmp_path: Path) -> WrittenQuery:
    return clicks(WrittenQuery(tmp_path / "query", "5d6e"), 10, 20)


def adopt(query: WrittenQuery, *more: str) -> int:
    store = str(query.folder.parent / "store")
    return exit_code(["adopt", str(query.folder), store, "--job", JOB, "--source", "clicks", "--watch-s", "0", *more])


def test_adopt_prints_the_start_of_the_job_and_the_end_of_the_query(query, capsys):
    assert adopt(query) == 0
    assert capsys.readouterr().out.splitlines() == [
        "query 5d6e after batch 1, now epoch 1 of job orders",
        "",
        "source  kind   continues at",
        "clicks  kafka  clicks/0 at 20, clicks/1 at 7",
        "",
        "Do not start the plain query again: it would write these rows a second time. Its checkpoint is as it was.",
        "Start the job orders with this store, and with these names of sources and operators.",
    ]


@pytest.mark.parametrize(("more", "waited"), [([], [10]), (["--dry-run"], [])])
def test_adopt_watches_the_checkpoint_as_long_as_rewind_apply(query, monkeypatch, more, waited):
    waits: list[float] = []
    own, sleep = threading.get_ident(), time.sleep
    monkeypatch.setattr("time.sleep", lambda s: waits.append(s) if threading.get_ident() == own else sleep(s))
    store = str(query.folder.parent / "store")
    assert exit_code(["adopt", str(query.folder), store, "--job", JOB, "--source", "clicks", *more]) == 0
    assert waits == waited


def test_a_watch_without_an_end_is_refused(query, capsys):
    assert adopt(query, "--watch-s", "inf") == 2
    assert "are seconds, such as 10" in capsys.readouterr().err


def test_a_dry_run_prints_the_same_and_writes_nothing(query, capsys):
    before = content_of(query.folder.parent)
    assert adopt(query, "--dry-run") == 0
    printed = capsys.readouterr().out
    assert content_of(query.folder.parent) == before
    assert "query 5d6e after batch 1\n" in printed
    assert "clicks/0 at 20" in printed
    assert printed.endswith("Nothing was changed.\n")


def test_a_dry_run_refuses_the_same_as_the_command(query, capsys):
    (query.folder.parent / "store").mkdir()
    (query.folder.parent / "store" / "mine").write_text("x")
    assert adopt(query, "--dry-run") == 3
    assert "the store is not empty" in capsys.readouterr().err


def test_unfinished_batches_are_reported(query, capsys):
    clicks(query, 30, commit=False)
    assert adopt(query, "--unfinished", "again", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["batch"], printed["notes"]) == (1, ["batch 2 was begun and not committed: its rows are read again"])


def test_the_adopted_epoch_is_marked_as_adopted(query, capsys):
    adopt(query)
    capsys.readouterr()
    assert exit_code(["show", str(query.folder.parent / "store"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "adopt"
