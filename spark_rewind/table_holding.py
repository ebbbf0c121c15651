"""Data files of a table that a pinned point holds by hard link. VACUUM cannot delete them, and a rewind restores them.

A file of a Delta table never changes, and its name is used once. So a file of the same name and size in a point is the
same file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from spark_ckpt.delta_files import Action, commit_path
from spark_rewind.durable import link_or_copy, part_of, sync_folder, written
from spark_rewind.pins import KeptPoint, PinnedFile
from spark_rewind.positions import DeltaPosition
from spark_rewind.shifts import base_of
from spark_rewind.table_content import commit_lines, content_at, parsed
from spark_rewind.tables import Table, lies_elsewhere

Held = Callable[[str], Path | None]
"""Lookup of a held file by its path below the table; None for a file that no point holds."""


def hold(table: Table, version: int, positions: Iterable[DeltaPosition], folder: Path) -> list[PinnedFile]:
    """Link the files that the table needs to roll back to a version, with readers at these positions.

    Raises FileNotFoundError if one disappears meanwhile, `LogDamaged`, `RewindUnsupported`, `RewindNotPermitted`.
    """
    found = []
    for path in sorted(_needed(table, version, positions)):
        target = folder / path
        with written(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(table.root / path, target)
        # Without a digest: these files may have gigabytes, and a name of a Delta file is used once.
        found.append(PinnedFile(path=path, size=target.stat().st_size))
    return found


def _needed(table: Table, version: int, positions: Iterable[DeltaPosition]) -> set[str]:
    """Return the files of the version, and files added since the oldest reader's position, which it reads from the log."""
    base = min([version, *(base_of(each) for each in positions)])
    if any(not (table.root / commit_path(each)).is_file() for each in range(max(base, 0), version + 1)):
        base = version  # such a reader cannot continue there anyway
    actions: list[Action] = [{"add": each} for each in content_at(table.root, base).files.values()]
    for number in range(base + 1, version + 1):
        actions += parsed(commit_lines(table.root, number), number)
    return {path for path, _ in _files(actions)}


def sizes_of(actions: Iterable[Action]) -> dict[str, int]:
    """Return the sizes in bytes that a log gives for its files, by path below the table."""
    return {path: size for path, size in _files(actions) if size is not None}


def _files(actions: Iterable[Action]) -> Iterable[tuple[str, int | None]]:
    for each in actions:
        # A commit that is written again names its change data files, too.
        for kind in ("add", "cdc"):
            path = str(each[kind]["path"]) if kind in each else ""
            if path and not lies_elsewhere(path) and not path.startswith("/"):
                yield unquote(path), each[kind].get("size")


def held_in(points: Sequence[KeptPoint], root: Path) -> Mapping[str, Path]:
    """Return the folders of points that hold files of a table, by the file's path.

    A file of another size does not count.
    """
    found: dict[str, Path] = {}
    for kept in points:
        for each in kept.point.tables if kept.point else ():
            if each.files and Path(each.path).resolve() == root.resolve():
                folder = kept.folder / each.kept_in
                found |= {file.path: folder for file in each.files if is_held(folder / file.path, file.size)}
    return found


def is_held(path: Path, size: int) -> bool:
    """Return true for an existing file of this size."""
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def put_back(source: Path, target: Path) -> None:
    """Restore a held file to its name in the table, atomically. Raises `RewindNotPermitted`, FileNotFoundError."""
    # a call after a crash finds the file in place
    if target.exists():
        return
    with written(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        # The source is gone: a copy would fail in the same way, and the caller names the point.
        except FileNotFoundError:
            raise
        except OSError:
            _copied(source, target)
        sync_folder(target.parent)


def _copied(source: Path, target: Path) -> None:
    # A killed process leaves a file that no reader opens.
    part = part_of(target)
    shutil.copy2(source, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)
