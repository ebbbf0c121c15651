"""`verify`, `doctor` and the restore plan read the ledgers of sources in the store, as every start does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from spark_ckpt_files import FilesSource
from spark_ckpt_files.ledger import Consumed, FileLedger
from spark_ckpt_files.listing import Directory

from spark_ckpt.errors import SourceInvalid
from tests.store.store_world import World


@dataclass
class Inbox:
    """A store with three epochs that consumed two files each, and its source."""

    world: World
    folder: Path

    @property
    def uri(self) -> str:
        return self.world.store.location.uri

    def segments(self, epoch: int) -> list[Path]:
        names = self.world.store.log.manifest(epoch).cursors["rows"]["segments"]
        return [Path(self.uri, "sources", "rows", str(name)) for name in names]  # type: ignore[union-attr]

    def start(self, epoch: int, **options: bool) -> None:
        """Call the source as a start that restores `epoch` does."""
        source = FilesSource(str(self.folder), "csv", "id long", header=False, **options)
        source.remember_in(self.world.store.location.child("sources", "rows"))
        cursors = {each: self.world.store.log.manifest(each).cursors["rows"] for each in (epoch, 3)}
        source.check_cursor(cursors[epoch], cursors[3])
        source.reached(cursors[epoch], {"names": []})  # reads the ledger


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    world, folder = World(tmp_path / "store"), tmp_path / "in"
    folder.mkdir()
    world.begin()
    ledger, consumed = FileLedger(world.store.location.child("sources", "rows")), Consumed()
    identity = {"rows": {"kind": "files", "path": str(folder)}}
    for number in range(1, 4):
        names = [f"{number}-{part}.csv" for part in "ab"]
        for name in names:
            (folder / name).write_text("1\n")
        consumed = ledger.after(consumed, list(Directory(str(folder)).stat(names).values()))
        cursors = {"rows": dict(consumed.cursor(str(folder)))}
        update = {"cursors": cursors, "operators": {}, "source_identities": identity}
        world.commit(world.manifest().model_copy(update=update))
    return Inbox(world, folder)


DAMAGES = {"cut": lambda whole: whole[:-7], "empty": lambda whole: b"", "gone": None}


@pytest.fixture(params=sorted(DAMAGES))
def newest(request: pytest.FixtureRequest, inbox: Inbox) -> Path:
    """Return the newest segment, which only epoch 3 needs, damaged."""
    segment = next(each for each in inbox.segments(3) if each not in inbox.segments(2))
    change = DAMAGES[request.param]
    if change is None:
        segment.unlink()
    else:
        segment.write_bytes(change(segment.read_bytes()))
    return segment


@pytest.mark.parametrize("deep", [["--deep"], []])
def test_verify_reads_the_ledger_that_a_start_reads(command, inbox: Inbox, newest: Path, deep: list[str]) -> None:
    with pytest.raises(SourceInvalid):
        inbox.start(3)

    answer = command("verify", inbox.uri, *deep, "--json")

    assert (answer.code, answer.json["whole"]) == (5, False)
    assert {each["epoch"]: each["whole"] for each in answer.json["epochs"]} == {1: True, 2: True, 3: False}
    assert newest.name in answer.json["epochs"][2]["damage"]


def test_an_intact_ledger_is_reported_as_intact(command, inbox: Inbox) -> None:
    answer = command("verify", inbox.uri, "--deep", "--json")

    assert (answer.code, answer.json["whole"], answer.json["unchecked_sources"]) == (0, True, [])


def test_doctor_finds_the_damaged_ledger_of_the_newest_epoch(command, inbox: Inbox, newest: Path) -> None:
    answer = command("doctor", "--store", inbox.uri, "--json")

    found = {each["check"]: each for each in answer.json["findings"]}["newest epoch"]
    assert (answer.code, found["status"], newest.name in found["detail"]) == (10, "fail", True)


def test_the_restore_plan_reports_that_the_job_would_not_start(command, inbox: Inbox, newest: Path) -> None:
    answer = command("restore", inbox.uri, "latest", "--dry-run", "--json")

    [source] = answer.json["inputs"]
    assert (answer.code, source["source"], newest.name in source["error"]) == (8, "rows", True)


def test_the_advice_names_an_epoch_that_verify_finds_intact(command, inbox: Inbox, newest: Path) -> None:
    with pytest.raises(SourceInvalid) as caught:
        inbox.start(3)
    assert "ignoreMissingFiles=True" in caught.value.hint
    whole = [each["epoch"] for each in command("verify", inbox.uri, "--json").json["epochs"] if each["whole"]]

    inbox.start(max(whole), ignoreMissingFiles=True)


def test_a_source_without_a_check_is_named(command, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_ckpt.cli import memory_check as memory
    from spark_ckpt.errors import ConnectorUnknown

    def unknown(name: str) -> None:
        raise ConnectorUnknown(name)

    monkeypatch.setattr(memory.connectors, "named", unknown)

    answer = command("verify", inbox.uri, "--json")

    assert (answer.code, answer.json["unchecked_sources"]) == (0, ["rows"])
