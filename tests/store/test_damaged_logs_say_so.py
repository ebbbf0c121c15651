"""A damaged epoch log gives the same answer as before, or an error: never another answer."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from store_world import ELSEWHERE, JOB, SINK, World

from spark_ckpt.delta_files import commit_name
from spark_ckpt.epochs import continuity
from spark_ckpt.epochs.log_state import At, LogState, folded
from spark_ckpt.epochs.records import EpochBrief, Manifest
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import CkptError, EpochDamaged, StoreIoFailed
from spark_ckpt.store import delta_log, log_table
from spark_ckpt.store.delta_log import CommitLost
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_table import LogTable
from spark_ckpt.store.store import Store

Answer = tuple[LogState, list[Manifest]]
FLIPS, MORE_FLIPS = 5, 20
"""Number of flipped bits in a file that readers need; the second number is a long test's."""
NEWEST_CHECKPOINT = f"{14:020d}"


def answer(root: Path) -> Answer:
    """Return everything that a fresh reader learns from the log."""
    store = Store.open(str(root), JOB)
    log_state = store.log.state()
    return log_state, [store.log.manifest(brief.epoch) for brief in log_state.epochs]


@dataclass(frozen=True)
class Written:
    """A store of a job: rows folded twice, shortened by retention, checkpoints, newer rows on top."""

    root: Path
    answer: Answer

    @property
    def log(self) -> Path:
        return self.root / "epochs/_delta_log"

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in (self.root / "epochs").rglob("*") if path.is_file())

    def is_read(self, path: Path) -> bool:
        """Return True if a reader of the newest version reads the file."""
        table = LogTable.open(Location(str(self.root)).child("epochs"), lambda: 0, create=False)
        assert table is not None
        table.refresh()
        live = table.paths
        return (
            path.name in live
            if path.suffix == ".parquet" and path.parent != self.log
            else path.name >= NEWEST_CHECKPOINT
        )

    @property
    def commits(self) -> list[Path]:
        return sorted(path for path in self.log.glob("*.json") if path.name[0] != "_")

    def learned(self) -> Answer | CkptError:
        try:
            return answer(self.root)
        except CkptError as error:
            return error

    def refused(self, match: str) -> None:
        with pytest.raises(EpochDamaged, match=match) as caught:
            answer(self.root)
        assert caught.value.hint


def write_store(root: Path) -> None:
    world = World(root)
    world.begin()
    for number in range(1, 5):
        world.epoch({"a": number}, acked=number - 1)
    world.store.retain(Retention(keep_last=2, slack=0))
    world.store.log.add_savepoint("kept", 4)
    for number in range(5, 9):
        world.epoch({"a": number}, acked=number - 1)
    world.begin()
    world.epoch({"a": 9}, acked=8)
    world.epoch({"a": 10}, acked=9)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pristine") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_table, "FOLD_AFTER", 6)
        write_store(root)
    return root


@pytest.fixture
def written(pristine: Path, tmp_path: Path) -> Written:
    shutil.copytree(pristine, tmp_path / "store")
    return Written(tmp_path / "store", answer(pristine))


def damages(path: Path, flips: int) -> Iterator[tuple[str, bytes | None]]:
    content = path.read_bytes()
    size = len(content)
    yield "delete", None
    if not flips:
        return
    for kept in sorted({0, 1, size // 2, max(0, size - 1)} - {size}):
        yield f"cut to {kept}", content[:kept]
    yield "zeros", b"\0" * size
    lines = content.splitlines(keepends=True) if path.suffix == ".json" else []
    for at in range(len(lines)):
        yield f"without line {at}", b"".join(lines[:at] + lines[at + 1 :])
    chance = random.Random(path.name[:20])
    for bit in sorted(chance.sample(range(size * 8), min(flips, size * 8))):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit}", bytes(flipped)


def put(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)


@pytest.mark.parametrize("flips", [FLIPS, pytest.param(MORE_FLIPS, marks=pytest.mark.long)])
def test_no_damage_of_any_file_of_the_log_changes_its_answer(written: Written, flips: int) -> None:
    before = {path: path.read_bytes() for path in written.files}
    seen = {"same": 0, "reported": 0}
    for path in before:
        for what, content in damages(path, flips if written.is_read(path) else 0):
            put(path, content)
            learned = written.learned()
            assert isinstance(learned, CkptError) or learned == written.answer, f"{path.name}: {what}"
            seen["reported" if isinstance(learned, CkptError) else "same"] += 1
            for moved in set(written.files) - before.keys():
                moved.unlink()
            for each in before.keys() & {path, written.log / "_last_checkpoint"} | (before.keys() - set(written.files)):
                each.write_bytes(before[each])
    assert min(seen.values()) > 50, seen


def test_binary_names_in_a_checkpoint_are_damage_like_any_other(written: Written) -> None:
    checkpoint = written.log / f"{NEWEST_CHECKPOINT}.checkpoint.parquet"
    checkpoint.write_bytes(checkpoint.read_bytes().replace(b"configuration", b"conf\xf4guration"))
    assert written.learned() == written.answer


class PanicException(BaseException):
    """As delta-rs raises it: not an `Exception`."""


def test_a_panic_of_delta_rs_is_damage_like_any_other(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    def panics(*_: object, **__: object) -> None:
        raise PanicException("TokioMultiThreadExecutor has crashed")

    monkeypatch.setattr(delta_log, "DeltaTable", panics)
    written.refused("delta-rs gave up: TokioMultiThreadExecutor has crashed")


def test_without_the_seals_of_rows_the_same_damage_changes_the_answer(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: the log accepts every row that it finds."""
    monkeypatch.setattr(continuity, "is_whole", lambda newest, total, version: True)
    written.commits[-2].write_bytes(b"")
    learned = written.learned()
    assert not isinstance(learned, CkptError)
    assert learned != written.answer


def test_a_missing_commit_between_others_is_named(written: Written) -> None:
    gone = written.commits[-2]
    gone.unlink()
    written.refused(f"the epoch log cannot be read: commit {int(gone.stem)} is missing, and there are later ones")


def test_an_emptied_commit_is_missing_by_its_number(written: Written) -> None:
    written.commits[-2].write_bytes(b"")
    written.refused("row 16 of the epoch log is missing")


def test_an_emptied_newest_commit_that_was_acknowledged_is_damage(written: Written) -> None:
    written.commits[-1].write_bytes(b"")
    written.refused("row 17 of the epoch log is missing")


@pytest.mark.parametrize("newest", [1, 2, 3])
def test_a_log_without_its_newest_commits_names_the_acknowledged_epoch(written: Written, newest: int) -> None:
    for path in written.commits[-newest:]:
        path.unlink()
    written.refused(r"ends at row \d+, but row 17 \(epoch 10\) was acknowledged")


def test_a_log_folder_from_an_older_backup_is_refused(pristine: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    world = World(root)
    world.begin()
    world.epoch({"a": 1})
    shutil.copytree(root / "epochs/_delta_log", tmp_path / "backup")
    world.epoch({"a": 2})
    shutil.rmtree(root / "epochs/_delta_log")
    shutil.copytree(tmp_path / "backup", root / "epochs/_delta_log")
    Written(root, answer(pristine)).refused(r"ends at row 3, but row 4 \(epoch 2\) was acknowledged")


def test_a_deleted_log_is_not_created_again(written: Written) -> None:
    shutil.rmtree(written.log)
    written.refused("the epoch log is gone")


@pytest.mark.parametrize("torn", [b"", b"\0" * 600], ids=["empty", "zeros"])
def test_a_newest_commit_that_was_never_acknowledged_may_be_torn(written: Written, torn: bytes) -> None:
    """A power loss before the answer: the epoch under way is not in the log, and the job continues."""
    Store.open(str(written.root), JOB).log.begin_incarnation(ELSEWHERE, takeover=True)
    written.commits[-1].write_bytes(torn)
    max((written.root / "epochs/_acknowledged").iterdir()).unlink()

    assert answer(written.root) == written.answer
    point = Store.open(str(written.root), JOB).log.begin_incarnation(ELSEWHERE, takeover=True)
    assert (point.incarnation, point.manifest.epoch) == (3, 10)


def test_the_rows_that_fold_or_shorten_a_log_record_the_remaining_rows(written: Written) -> None:
    folded = next(path for path in (written.root / "epochs").glob("*-000000000014-*") if path.stat().st_size > 5000)
    rows = log_table.Location(str(written.root / "epochs")).read_table(folded.name)
    log_table.Location(str(written.root / "epochs")).write_table(folded.name, rows.slice(1))
    written.refused("rows before row 14 of the epoch log are missing")


def test_a_log_that_acknowledges_an_epoch_it_does_not_have_is_damaged() -> None:
    assert "sink out has epoch 52, but its newest epoch is 51" in LogState(last=51, acked={SINK: 52}).contradiction()
    assert LogState(last=52, acked={SINK: 52}).contradiction() == ""


@pytest.mark.parametrize("at_once", [True, False])
def test_a_log_with_an_epoch_of_an_incarnation_it_does_not_have_is_damaged(at_once: bool) -> None:
    epochs = [(At(seq, 0), brief_of(epoch=seq, incarnation=seq)) for seq in (1, 2)]
    log_state = LogState(incarnation=1)
    for rows in [epochs] if at_once else [epochs[:1], epochs[1:]]:
        assert log_state.contradiction() == ""
        log_state = folded(log_state, rows)
    assert "has an epoch of incarnation 2, but its newest incarnation is 1" in log_state.contradiction()
    assert folded(log_state, []).contradiction()


def brief_of(epoch: int, incarnation: int) -> EpochBrief:
    manifest = Manifest(job=JOB, epoch=epoch, incarnation=incarnation, attempt="a", base=epoch - 1, created_ms=0)
    return EpochBrief.of(manifest, lease_expires_ms=0)


def test_a_repeated_commit_acknowledges_the_one_whose_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "store")
    world.begin()
    world.snapshot({"a": 1})
    manifest = world.manifest()
    real = log_table.acknowledge
    monkeypatch.setattr(log_table, "acknowledge", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        world.store.log.commit_epoch(manifest)
    monkeypatch.setattr(log_table, "acknowledge", real)
    world.store.log.commit_epoch(manifest)
    max((tmp_path / "store/epochs/_delta_log").glob("0*.json")).unlink()
    with pytest.raises(EpochDamaged, match=r"row 3 \(epoch 1\) was acknowledged"):
        Store.open(str(tmp_path / "store"), JOB)


@pytest.mark.parametrize("read_between", [False, True])
def test_a_commit_whose_fsync_failed_is_written_again_and_acknowledged_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_between: bool
) -> None:
    """The kernel may have dropped the bytes: a second fsync of the same file would succeed and prove nothing."""
    world = World(tmp_path / "store")
    world.begin()
    world.snapshot({"a": 1})
    manifest, log = world.manifest(), tmp_path / "store/epochs/_delta_log"
    commit, fsync, failed = log / commit_name(world.store.log.state().lease_token + 1), os.fsync, list[int]()

    def failing(descriptor: int) -> None:
        found = os.fstat(descriptor)
        if commit.exists() and os.path.samestat(found, commit.stat()):
            assert found.st_ino not in failed, "a failed fsync is never repeated"
            if not failed:
                failed.append(found.st_ino)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StoreIoFailed):
        world.store.log.commit_epoch(manifest)
    content = commit.read_bytes()
    if read_between:
        assert world.store.log.state().latest == 1
    world.clock.ms += 1
    world.store.log.commit_epoch(manifest)
    assert commit.read_bytes() == content
    assert [path.name for path in log.iterdir() if path.name.startswith(".")] == [], "no copy is left"
    again = Store.open(str(tmp_path / "store"), JOB)
    assert again.log.manifest(1) == manifest
    commit.unlink()
    with pytest.raises(EpochDamaged, match=r"\(epoch 1\) was acknowledged"):
        Store.open(str(tmp_path / "store"), JOB)


def test_a_repeated_commit_acknowledges_the_one_that_landed_in_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "store")
    world.begin()
    world.snapshot({"a": 1})
    manifest, real = world.manifest(), delta_log.commit

    def lost(*args: object, **kwargs: object) -> int:
        monkeypatch.setattr(delta_log, "open_table", lambda *_: (_ for _ in ()).throw(StoreIoFailed("away")))
        real(*args, **kwargs)  # type: ignore[arg-type]
        raise CommitLost("no answer")

    monkeypatch.setattr(delta_log, "commit", lost)
    with pytest.raises(StoreIoFailed):
        world.store.log.commit_epoch(manifest)
    monkeypatch.undo()
    world.clock.ms += 1
    world.store.log.commit_epoch(manifest)
    assert Store.open(str(tmp_path / "store"), JOB).log.manifest(1) == manifest
