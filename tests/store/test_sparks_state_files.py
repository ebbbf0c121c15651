"""State files of Spark's own operators get names in the store that never disappear, and only files of one batch are used."""

from __future__ import annotations

import gc
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_ckpt.api import sparks_state
from spark_ckpt.epochs.records import Manifest, SparkState
from spark_ckpt.errors import EpochDamaged
from spark_ckpt.spark_internals import state_selection
from spark_ckpt.spark_internals.state_selection import select
from spark_ckpt.store.location import Location
from spark_ckpt.store.spark_state import Known, Moment, SparkStates, StateIndex

OTHER_ID = "00000000-0000-0000-0000-000000000001"
ID = "00000000-0000-0000-0000-000000000002"


class Checkpoint:
    """The folder `state` of one operator with one partition, as Spark's state stores write it."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.put("0/_metadata/metadata", "v1")
        self.put("0/0/_metadata/schema", "a schema")

    def put(self, place: str, content: str = "") -> Path:
        path = self.state / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content or place)
        return path

    def deltas(self, *versions: int) -> None:
        for version in versions:
            self.put(f"0/0/{version}.delta", f"changes of {version}")

    def snapshot(self, version: int, *shared: str, whole: bool = True) -> None:
        """Write a snapshot of RocksDB that lists files in SSTs."""
        listed = [{"localSstFileName": name, "dfsSstFileName": name, "sizeBytes": 1} for name in shared]
        with zipfile.ZipFile(self.put(f"0/0/{version}.zip"), "w") as archive:
            archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": listed, "logFiles": []}))
        for name in shared if whole else ():
            self.put(f"0/0/SSTs/{name}")

    def places(self, batch: int, ids: object = None) -> list[str]:
        return sorted(select(self.state, batch + 1, batch, ids or {}, alone=True).files)


class Bench:
    """A store, and the checkpoint of one incarnation."""

    def __init__(self, folder: Path, incarnation: int = 1) -> None:
        self.incarnation = incarnation
        self.states = SparkStates(Location(str(folder / "store")))
        self.checkpoint = Checkpoint(folder / f"run-{incarnation}")
        self.known = Known()
        self.location = folder / "store"

    def keep(self, batch: int) -> SparkState:
        moment = Moment(self.incarnation, batch, "{}", "v1\n{}", "a provider", 1, 1, ("dedupe",))
        return self.states.keep(self.checkpoint.state, self.checkpoint.places(batch), moment, self.known)

    def stored(self) -> set[str]:
        return {path.name for path in self.location.iterdir()}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def manifest(epoch: int, state: SparkState) -> Manifest:
    return Manifest(job="job", epoch=epoch, incarnation=1, attempt="a", created_ms=0, spark_state=state)


def content_of(states: SparkStates, record: SparkState, folder: Path) -> dict[str, str]:
    states.lay_out(record, folder, 1)
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


DESCRIPTIONS = ["0/0/_metadata/schema", "0/_metadata/metadata"]


def places_of(bench: Bench, record: SparkState) -> list[str]:
    return sorted({file.place for file in bench.states.index(record).files} - set(DESCRIPTIONS))


def test_snapshots_older_than_the_one_to_load_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, opened = Checkpoint(tmp_path), []
    for version in range(1, 9):
        checkpoint.snapshot(version, f"{version}.sst", whole=version != 8)
    real = zipfile.ZipFile

    def counted(path: Path, *mode: str) -> zipfile.ZipFile:
        opened.append(path.name)
        return real(path, *mode)

    monkeypatch.setattr(zipfile, "ZipFile", counted)
    assert checkpoint.places(7) == ["0/0/7.zip", "0/0/SSTs/7.sst", "0/0/_metadata/schema", "0/_metadata/metadata"]
    assert set(opened) == {"7.zip", "8.zip"}


def test_an_epoch_has_the_changes_up_to_its_batch_and_none_of_a_later_one(bench: Bench) -> None:
    bench.checkpoint.deltas(1, 2, 3)
    assert places_of(bench, bench.keep(1)) == ["0/0/1.delta", "0/0/2.delta"]


def test_the_changes_before_a_snapshot_are_left_out(bench: Bench) -> None:
    bench.checkpoint.deltas(1, 2, 3)
    bench.checkpoint.put("0/0/2.snapshot")
    assert places_of(bench, bench.keep(2)) == ["0/0/2.delta", "0/0/2.snapshot", "0/0/3.delta"]


def test_an_incomplete_snapshot_is_left_out(bench: Bench) -> None:
    for version in (1, 2, 3):
        bench.checkpoint.put(f"0/0/{version}.changelog")
    bench.checkpoint.snapshot(1, "a.sst")
    bench.checkpoint.snapshot(3, "b.sst", whole=False)
    places = ["0/0/1.changelog", "0/0/1.zip", "0/0/2.changelog", "0/0/3.changelog", "0/0/SSTs/a.sst"]
    assert places_of(bench, bench.keep(2)) == places


def test_files_of_an_attempt_that_no_commit_names_are_left_out(bench: Bench) -> None:
    for unique in (ID, OTHER_ID):
        bench.checkpoint.put(f"0/0/1_{unique}.changelog")
    assert f"0/0/1_{ID}.changelog" in bench.checkpoint.places(0, {1: {0: [[ID]]}})
    assert f"0/0/1_{OTHER_ID}.changelog" not in bench.checkpoint.places(0, {1: {0: [[ID]]}})


def test_a_file_that_the_last_epoch_named_keeps_its_name(bench: Bench) -> None:
    bench.checkpoint.deltas(1)
    first = bench.keep(0)
    bench.checkpoint.deltas(2)
    second = bench.keep(1)
    shared = set(bench.states.index(first).files) & set(bench.states.index(second).files)
    assert {file.place for file in shared} == {*DESCRIPTIONS, "0/0/1.delta"}


def test_files_that_spark_deletes_or_writes_again_change_no_epoch(bench: Bench, tmp_path: Path) -> None:
    bench.checkpoint.deltas(1)
    record = bench.keep(0)
    (bench.checkpoint.state / "0/0/1.delta").unlink()
    bench.checkpoint.put("0/0/1.delta", "another history")
    again = bench.keep(0)
    assert content_of(bench.states, record, tmp_path / "laid").get("0/0/1.delta") == "changes of 1"
    assert content_of(bench.states, again, tmp_path / "again").get("0/0/1.delta") == "another history"


def test_the_next_incarnation_shares_the_files_and_adds_its_own(bench: Bench, tmp_path: Path) -> None:
    bench.checkpoint.deltas(1, 2)
    base = bench.keep(1)
    following = Bench(tmp_path, incarnation=2)
    (following.checkpoint.state / "0/_metadata/metadata").unlink()
    (following.checkpoint.state / "0/0/_metadata/schema").unlink()
    _, following.known = following.states.lay_out(base, following.checkpoint.state, 1)
    following.checkpoint.deltas(3)
    record = following.keep(2)
    new = {file.place for file in set(following.states.index(record).files) - set(bench.states.index(base).files)}
    assert new == {"0/0/3.delta"}


def test_a_file_that_spark_deleted_first_fails_the_capture(bench: Bench) -> None:
    bench.checkpoint.deltas(1)
    places = bench.checkpoint.places(0)
    (bench.checkpoint.state / "0/0/1.delta").unlink()
    moment = Moment(1, 0, "{}", "v1\n{}", "a provider", 1, 1, ("dedupe",))
    with pytest.raises(FileNotFoundError):
        bench.states.keep(bench.checkpoint.state, places, moment, bench.known)


def damaged(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if how == "cut":
        path.write_bytes(content[:-1])
    elif how == "flipped":
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


@pytest.mark.parametrize("how", ["flipped", "cut", "deleted"])
@pytest.mark.parametrize("what", ["the index", "a file"])
def test_damage_is_found_before_spark_sees_it(bench: Bench, tmp_path: Path, what: str, how: str) -> None:
    bench.checkpoint.deltas(1)
    record = bench.keep(0)
    path = record.index if what == "the index" else bench.states.index(record).files[-1].path
    damaged(bench.location / path, how)
    states = SparkStates(Location(str(bench.location)))
    with pytest.raises(EpochDamaged) as deep:
        states.verify(record, deep=True, epoch=1)
    with pytest.raises(EpochDamaged) as start:
        SparkStates(Location(str(bench.location))).lay_out(record, tmp_path / "laid", 1)
    assert (deep.value.context["file"], start.value.context["file"]) == (path, path)
    assert deep.value.context["epoch"] == 1


def test_only_files_of_kept_epochs_stay(bench: Bench) -> None:
    bench.checkpoint.deltas(1)
    first = bench.keep(0)
    bench.checkpoint.deltas(2)
    bench.checkpoint.put("0/0/2.snapshot")
    second = bench.keep(1)
    bench.states.sweep([manifest(2, second)], [manifest(1, first)], incarnation=1)
    assert bench.stored() == {second.index, *(file.path for file in bench.states.index(second).files)}


def test_an_epoch_that_is_about_to_be_committed_keeps_its_files(bench: Bench) -> None:
    bench.checkpoint.deltas(1)
    committed = bench.keep(0)
    bench.checkpoint.deltas(2)
    bench.keep(1)
    stored = bench.stored()
    bench.states.sweep([manifest(1, committed)], [], incarnation=1)
    assert bench.stored() == stored
    bench.states.sweep([manifest(1, committed)], [], incarnation=2)
    assert bench.stored() == {committed.index, *(file.path for file in bench.states.index(committed).files)}


def test_a_driver_whose_standby_does_the_retention_forgets_old_indexes(bench: Bench) -> None:
    bench.checkpoint.deltas(1)
    for _ in range(200):
        newest = bench.keep(0)
    assert sum(isinstance(each, StateIndex) for each in gc.get_objects()) < 100
    assert len(bench.states.index(newest).files) == newest.files


def test_nothing_is_deleted_while_the_index_of_a_kept_epoch_cannot_be_read(bench: Bench) -> None:
    bench.checkpoint.deltas(1)
    kept = bench.keep(0)
    damaged(bench.location / kept.index, "deleted")
    stored = bench.stored()
    assert SparkStates(Location(str(bench.location))).sweep([manifest(1, kept)], [], incarnation=9) == []
    assert bench.stored() == stored


# -- planted bugs: a test above finds each one --------------------------------------------------------------------------


def of_another_batch(by: int):
    def planted(self, newest: int, *rest, **more) -> None:
        real(self, newest + by, *rest, **more)

    real = state_selection.Counting.__init__
    return planted


def any_attempt(self, name: str) -> bool:
    found = state_selection.versioned(name)
    return found is not None and found[0] <= self.newest


BUGS = {
    "the state of the batch before": (
        (state_selection.Counting, "__init__", of_another_batch(-1)),
        test_an_epoch_has_the_changes_up_to_its_batch_and_none_of_a_later_one,
    ),
    "the state of the batch after": (
        (state_selection.Counting, "__init__", of_another_batch(1)),
        test_an_epoch_has_the_changes_up_to_its_batch_and_none_of_a_later_one,
    ),
    "a snapshot that is not whole": (
        (state_selection, "missing_in_snapshot", lambda snapshot: None),
        test_an_incomplete_snapshot_is_left_out,
    ),
    "an attempt that does not count": (
        (state_selection.Counting, "has", any_attempt),
        test_files_of_an_attempt_that_no_commit_names_are_left_out,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bench: Bench, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted, judge = BUGS[bug]
    monkeypatch.setattr(*planted)
    with pytest.raises(AssertionError):
        judge(bench)


def test_a_file_that_spark_wrote_again_is_found(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Known, "of", lambda self, place, found: self.files[place][0] if place in self.files else None)
    with pytest.raises(AssertionError):
        test_files_that_spark_deletes_or_writes_again_change_no_epoch(bench, tmp_path)


def test_a_reader_that_dies_leaves_no_schemas_of_the_old_checkpoint(bench, tmp_path, monkeypatch):
    """`transformWithState` names them by absolute paths, and later readers that find the folder read it without a check."""
    bench.checkpoint.put("0/_metadata/v2/0", '{"schema":"file:/old/state/0/_stateSchema/default/0_b"}')
    bench.checkpoint.deltas(1)
    record = bench.keep(0)
    place = tmp_path / "read"
    store = SimpleNamespace(spark_states=bench.states, reading_folder=lambda epoch, index: place)

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(sparks_state.shutil, "rmtree", dies)
        with pytest.raises(KeyboardInterrupt):
            sparks_state.laid_out(None, store, record, 1)
    state = sparks_state.laid_out(None, store, record, 1) / "state"
    assert (state / "0/_metadata/v2/0").read_text() == f'{{"schema":"{state.as_uri()}/0/_stateSchema/default/0_b"}}'
