"""Every command reports a wrong place in one sentence, with a documented exit code: all commands, all wrong places."""

from __future__ import annotations

import pytest

from spark_ckpt.explained.explanation import conditions
from spark_ckpt.observability.page.serving import PageServer
from tests.named_ways import verbs
from tests.store.store_world import OPERATOR

GIVEN = {
    "list": ["PLACE"],
    "show": ["PLACE", "1"],
    "state": ["PLACE", OPERATOR],
    "diff": ["PLACE", OPERATOR, "1", "2"],
    "restore": ["PLACE", "1", "--dry-run"],
    "line": ["PLACE"],
    "rescale": ["PLACE", OPERATOR, "--key-groups", "2"],
    "bootstrap": ["PLACE", "new", "--of", OPERATOR],
    "adopt": ["PLACE", "NEW", "--job", "adopted"],
    "accept-loss": ["PLACE", "--epoch", "9"],
    "ui": ["PLACE", "--port", "0"],
    "report": ["PLACE"],
    "lease": ["PLACE"],
    "handover": ["PLACE"],
    "verify": ["PLACE", "--deep"],
    "trace": ["PLACE"],
    "savepoint add": ["PLACE", "named"],
    "savepoint drop": ["PLACE", "named"],
    "savepoint list": ["PLACE"],
    "rewind pin": ["PLACE", "--into", "NEW"],
    "rewind points": ["PLACE"],
    "rewind unpin": ["PLACE", "named"],
    "rewind plan": ["PLACE", "--to", "2026-01-01T00:00:00Z"],
    "rewind apply": ["PLACE"],
    "rewind undo": ["PLACE"],
    "doctor": ["--store", "PLACE"],
}
NO_PLACE = {"explain", "connectors", "jars", "prepare", "simulate", "compare", "demo"}
"""Commands that read no store, checkpoint or file of a job."""


ANSWERS = {"doctor", "ui", "verify"}
"""Commands that answer with the finding: a report, or a page that names the store that cannot be read."""


def nowhere(folder, store):
    return folder / "nowhere"


def a_file(folder, store):
    (folder / "file").write_bytes(b"\x00\xff not what it should be\n")
    return folder / "file"


def a_foreign_folder(folder, store):
    (folder / "foreign").mkdir()
    (folder / "foreign" / "notes.txt").write_text("mine")
    return folder / "foreign"


def a_foreign_table(folder, store):
    log = folder / "table" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text('{"commitInfo":{}}\n')
    return folder / "table"


def a_store_with_a_broken_log(folder, store):
    for commit in (store / "epochs" / "_delta_log").glob("*.json"):
        commit.write_bytes(b"\x00" * 40)
    return store


def a_store_without_its_log(folder, store):
    for commit in (store / "epochs" / "_delta_log").iterdir():
        commit.unlink()
    return store


PLACES = (nowhere, a_file, a_foreign_folder, a_foreign_table, a_store_with_a_broken_log, a_store_without_its_log)
CODES = {kind.exit_code for kind in conditions().values()}


def test_every_command_is_tried_with_wrong_places():
    every = {" ".join(words) for words, options in verbs().items() if options is not None}
    assert every == GIVEN.keys() | NO_PLACE


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("verb", GIVEN)
def test_a_wrong_place_is_reported_in_words(command, world, tmp_path, monkeypatch, verb, place):
    monkeypatch.setattr(PageServer, "run", lambda server: None)
    at = place(tmp_path, tmp_path / "store")
    arguments = [each.replace("PLACE", str(at)).replace("NEW", str(tmp_path / "new")) for each in GIVEN[verb]]

    answer = command(*verb.split(), *arguments)

    assert "Traceback" not in answer.err + answer.out
    if verb not in ANSWERS:
        assert answer.code in CODES
        assert answer.err.startswith(("[CKPT_", "Usage: "))
