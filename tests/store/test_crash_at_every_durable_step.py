"""P3: a crash or a power loss before any durable step loses no acknowledged epoch and makes no partial epoch visible."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from store_world import ELSEWHERE, OPERATOR, SINK, World

from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import EpochDamaged
from spark_ckpt.store import durable


@dataclass(frozen=True)
class Crash:
    """A crashed process: its files, those that a power loss would spare, and its acknowledged epochs."""

    files: Path
    safe: frozenset[Path]
    acknowledged: tuple[int, ...]


class Disk:
    """Count durable steps; before each `stride`-th one, copy the files that a crash would leave. No handler runs in a copy."""

    def __init__(self, root: Path, kept: Path | None = None, stride: int = 1) -> None:
        self.root, self.kept, self.stride = root, kept, stride
        self.crashes: dict[int, Crash] = {}
        self.acknowledged: list[int] = []
        self.steps = 0
        self.fsynced: set[Path] = set()
        self.safe: set[Path] = set()

    def __call__(self, what: str, path: str) -> None:
        if self.kept is not None and self.steps % self.stride == 0:
            files = self.kept / str(self.steps)
            shutil.copytree(self.root, files)
            self.crashes[self.steps] = Crash(files, frozenset(self.safe), tuple(self.acknowledged))
        self.steps += 1
        if what == "fsync":
            self.fsynced.add(Path(path))
        elif what == "sync-folder":
            # Without the folder's entry, the contents are lost, too.
            self.safe |= {file for file in self.fsynced if file.parent == Path(path)}

    def crashed(self, crash: Crash) -> None:
        """Move the files of the crashed process back to its folder."""
        shutil.rmtree(self.root)
        crash.files.rename(self.root)
        self.safe = set(crash.safe)

    def lose_power(self, tear: Callable[[Path], None]) -> None:
        """Tear every file whose contents or name have no fsync."""
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = Path(folder) / name
                if path not in self.safe:
                    tear(path)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def gone(path: Path) -> None:
    path.unlink()


def run_epochs(root: Path, acknowledged: list[int]) -> World:
    """Run epochs with acknowledgements, materialization and retention; record each acknowledged epoch at once."""
    world = World(root / "store")
    world.begin()
    for number, full in enumerate((True, False, True), start=1):
        world.epoch({"a": number, f"k{number}": number, "k1": None}, full=full, materialize=False, acked=number - 1)
        acknowledged.append(number)
        world.store.materialize(world.store.log.manifest(number))
    world.store.retain(Retention(keep_last=2, slack=0))
    return world


def state_of(number: int) -> dict[str, int]:
    """Return the state of `run_epochs` at an epoch, written by hand."""
    return {0: {}, 1: {"a": 1}, 2: {"a": 2, "k2": 2}, 3: {"a": 3, "k2": 2, "k3": 3}}[number]


def check_recovery(root: Path, acknowledged: Sequence[int]) -> None:
    world = World(root / "store")
    point = world.store.log.begin_incarnation(ELSEWHERE, takeover=True)
    newest = point.manifest.epoch
    last_acknowledged = max(acknowledged, default=0)
    assert newest in (last_acknowledged, last_acknowledged + 1), "the last acknowledged epoch or the one under way"
    if newest:
        assert world.state_at(newest) == state_of(newest)
    world.store.materialize(point.manifest)
    world.line.incarnation, world.line.base, world.last = point.incarnation, newest, point.last
    world.line.chain = point.manifest.operators[OPERATOR].files if newest else ()
    world.line.state = state_of(newest)
    after = world.epoch({"after": 1})
    assert world.state_at(after.epoch) == {**state_of(newest), "after": 1}
    assert world.store.staged(SINK).read(after.epoch).column("value").to_pylist() == [f"row of {after.epoch}"]
    world.store.retain(Retention(keep_last=1, slack=0))
    for brief in world.store.log.state().epochs:
        world.store.verify(world.store.log.manifest(brief.epoch), deep=True)


LOSSES: tuple[Callable[[Path], None] | None, ...] = (None, zeroed, emptied, gone)
"""Loss of unsynced files: none (only the process died), or one of three kinds of power loss."""


EVERY, EVERY_FIFTH = 1, 5
"""Steps from one crash to the next. Five and the number of losses are coprime: each loss comes to each kind of step."""


@pytest.mark.parametrize(
    ("stride", "shift"),
    [(EVERY_FIFTH, 0), pytest.param(EVERY, 0, marks=pytest.mark.long), pytest.param(EVERY, 1, marks=pytest.mark.long)],
)
def test_recovery_after_a_crash_before_a_durable_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int, shift: int
) -> None:
    root, kept = tmp_path / "crashed", tmp_path / "kept"
    root.mkdir()
    disk = Disk(root, kept, stride)
    with monkeypatch.context() as patch:
        patch.setattr(durable, "on_step", disk)
        patch.setattr(durable, "durable_folders", set())
        run_epochs(root, disk.acknowledged)
    assert disk.steps > 40, "the scenario exercises the store"
    for step, crash in disk.crashes.items():
        disk.crashed(crash)
        tear = LOSSES[(step + shift) % len(LOSSES)]
        if tear is not None:
            disk.lose_power(tear)
        with monkeypatch.context() as patch:
            patch.setattr(durable, "durable_folders", set())
            check_recovery(root, crash.acknowledged)


def test_the_power_loss_model_finds_a_store_that_does_not_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: without fsync, the test must find the loss of an acknowledged epoch."""
    disk = Disk(tmp_path)
    monkeypatch.setattr(durable, "on_step", disk)
    monkeypatch.setattr(durable, "sync_file", lambda path: None)
    run_epochs(tmp_path, disk.acknowledged)
    disk.lose_power(zeroed)
    monkeypatch.undo()
    with pytest.raises(EpochDamaged):
        check_recovery(tmp_path, disk.acknowledged)
