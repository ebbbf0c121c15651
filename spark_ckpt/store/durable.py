"""Durable steps on a local file system: contents, names and folders reach the disk before anything is acknowledged.

Object stores acknowledge durable writes themselves, so these calls are not made there.

A failed fsync is never repeated: the kernel may have dropped the pages that it could not write. The call fails, and the
next one for this file writes the content to another file first. Others may have read a commit, so it cannot be withdrawn.
Errors of the file system are raised as a `StoreOutage`; a missing file stays a FileNotFoundError.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from spark_ckpt.errors import StoreOutage
from spark_ckpt.storage_errors import outage, typed_errors_at

Step = Callable[[str, str], None]


def _no_step(what: str, path: str) -> None:
    """Do nothing. Tests replace it by a recorder or a failure."""


on_step: Step = _no_step
"""Hook called before each durable step, for crash tests: mkdir, fsync, sync-folder, put, commit, checkpoint, delete."""

durable_folders: set[str] = set()
"""Folders that this process has made durable."""


_failed: set[Path] = set()
"""Files whose fsync failed in this process."""


def step(what: str, path: str) -> None:
    """Announce a durable step on `path`. Crash tests stop the program here."""
    on_step(what, path)


def sync_file(path: Path) -> None:
    """Make the file's contents and its name in its folder survive a power loss. Raises a `StoreOutage`."""
    step("fsync", str(path))
    if path in _failed:
        _write_again(path)
    try:
        _fsync(path)
        sync_folder(path.parent)  # the name, which came by a rename or a link
    except StoreOutage:
        _failed.add(path)
        raise
    _failed.discard(path)


def sync_folder(path: Path) -> None:
    """Make the folder's entries survive a power loss. Raises a `StoreOutage`."""
    step("sync-folder", str(path))
    _fsync(path)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file another name, or copy it if the file system has no links. A copy's content is durable. Raises OSError."""
    try:
        os.link(source, target)
    # A copy would replace the file that is there.
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:
        shutil.copy2(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def make_folder(path: Path, root: Path | None = None) -> None:
    """Create the folder and its ancestors durably, once per process and folder. `root`: an ancestor that must exist.

    Raises a `StoreOutage`.
    """
    # Looked at again: a folder may have been deleted or unmounted since.
    if str(path) in durable_folders and path.is_dir():
        return
    step("mkdir", str(path))
    with typed_errors_at(str(path)):
        if root is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            _make_below(path, root)
    for folder in (path, *path.parents):
        # A new folder is an entry of its parent, so the parents are synced, too. One without read permission existed
        # before.
        if os.access(folder, os.R_OK):
            _fsync(folder)
    durable_folders.add(str(path))


def _make_below(path: Path, root: Path) -> None:
    # One at a time: below a folder that was moved away the first one fails, and nothing takes the place to which it comes back.
    if path != root:
        _make_below(path.parent, root)
        try:
            path.mkdir(exist_ok=True)
        except FileNotFoundError as error:
            raise outage(str(root), FileNotFoundError("the folder is gone; was it moved away?")) from error


def _fsync(path: Path) -> None:
    with typed_errors_at(str(path)):
        # Linux syncs through a descriptor that only reads, and a folder cannot be opened otherwise.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_again(path: Path) -> None:
    """Replace a file by a copy of it, whose fsync says something again."""
    # Hidden, so that no reader takes a part of it for the file.
    copy = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with typed_errors_at(str(path)):
        try:
            shutil.copy2(path, copy)
            _fsync(copy)
            copy.replace(path)
        finally:
            copy.unlink(missing_ok=True)
