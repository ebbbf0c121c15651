"""What a local file system owes us before anything is acknowledged: contents, names and folders on disk.

Object stores acknowledge durable writes by themselves; there these calls are not made.  A failed fsync is never tried
again: the kernel may have dropped the pages it could not write, so the file counts as lost and its writer must fail.
What the file system refuses is raised as a `StoreOutage`; a missing file stays FileNotFoundError.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from spark_ckpt.storage_errors import typed_errors_at

Step = Callable[[str, str], None]


def _no_step(what: str, path: str) -> None:
    """Nothing: tests put a recorder or a failure in its place."""


on_step: Step = _no_step
"""Called before each durable step, for crash tests: mkdir, fsync, sync-folder, put, commit, checkpoint, delete."""

_durable_folders: set[str] = set()


def step(what: str, path: str) -> None:
    """Announce a durable step; crash tests stop the program here."""
    on_step(what, path)


def sync_file(path: Path) -> None:
    """The file's contents and its name in its folder survive a power loss."""
    step("fsync", str(path))
    _fsync(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """The folder's entries survive a power loss."""
    step("sync-folder", str(path))
    _fsync(path)


def make_folder(path: Path) -> None:
    """The folder exists durably, its ancestors too. Once per process and folder."""
    if str(path) in _durable_folders and path.is_dir():
        return
    step("mkdir", str(path))
    with typed_errors_at(str(path)):
        path.mkdir(parents=True, exist_ok=True)
    for folder in (path, *path.parents):
        if os.access(folder, os.R_OK):
            _fsync(folder)
    _durable_folders.add(str(path))


def _fsync(path: Path) -> None:
    with typed_errors_at(str(path)):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
