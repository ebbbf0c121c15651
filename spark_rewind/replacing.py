"""Replacement of a folder by one that a rewind made. The old folder is kept under another name.

A mark in the new folder names its rewind. After a crash between two steps, it tells which folder is in place.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path

from spark_ckpt.errors import RewindNotPermitted
from spark_ckpt.failpoints import Failpoint, hit
from spark_rewind.durable import sync_folder, write_new, written

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_HINT = (
    "rewind on the Linux machine that the checkpoints' disk is attached to, or copy them to a local disk of it and back"
)


def swap(one: Path, other: Path) -> None:
    """Exchange two names atomically (Linux, `renameat2`). Raises `RewindNotPermitted`."""
    # Python has no wrapper for renameat2
    library = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, "renameat2", None)
    if call is None:
        raise RewindNotPermitted(f"names cannot be exchanged in one step on {sys.platform}", hint=_HINT)
    # Two renames would leave a moment without a checkpoint: a query that starts then begins from batch 0.
    failed = call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if failed:
        code = ctypes.get_errno()
        raise RewindNotPermitted(f"{one} and {other} cannot change names: {os.strerror(code)}", hint=_HINT)


def check_swap(folder: Path) -> None:
    """Check that folders in a folder can be exchanged, with two temporary folders. Raises `RewindNotPermitted`."""
    try:
        # Tried in place, since only the file system itself knows if it has the exchange.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".rewind-") as tried:
            one, other = Path(tried, "one"), Path(tried, "other")
            one.mkdir()
            other.mkdir()
            swap(one, other)
    except OSError as error:
        hint = "run as a user that may make folders there; nothing was changed"
        raise RewindNotPermitted(f"{folder}: {error.strerror}", hint=hint) from error


MOUNTS = Path("/proc/self/mountinfo")


def is_mount_point(folder: Path) -> bool:
    """Return true if a volume is mounted at a folder, or another folder of the same disk. No rename moves such a name."""
    # Of a symbolic link the link is renamed, wherever it leads.
    if folder.is_symlink():
        return False
    try:
        found = [line.split() for line in os.fsdecode(MOUNTS.read_bytes()).splitlines()]  # a name has any bytes
    except OSError:
        return folder.is_mount()
    # proc(5): the fifth field is the mount point, with its blanks escaped.
    place = str(folder.parent.resolve() / folder.name).replace(" ", "\\040")
    return any(fields[4:5] == [place] for fields in found)


def check_link(folder: Path) -> None:
    """Check that a folder can have hard links, by which `write_new` creates a file. Raises `RewindNotPermitted`."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".rewind-") as tried:
            one = Path(tried, "one")
            one.touch()
            os.link(one, Path(tried, "other"))
    except OSError as error:
        hint = "rewind where this folder is on a disk: mounts of object stores have no hard links; nothing was changed"
        raise RewindNotPermitted(f"{folder} takes no hard link: {error.strerror}", hint=hint) from error


MARK = ".spark-ckpt-rewind.json"
"""File that marks a folder made by a rewind. It names the rewind."""


def write_mark(folder: Path, identity: str, made_of: str) -> None:
    """Mark a folder with its rewind and the later name of the folder that it replaces. Raises `RewindNotPermitted`."""
    write_new(folder / MARK, json.dumps({"rewind": identity, "made_of": made_of}).encode())


def is_made_by(folder: Path, identity: str) -> bool:
    """Return true for a folder that a rewind made."""
    try:
        return bool(json.loads((folder / MARK).read_bytes())["rewind"] == identity)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def put_in_place(place: Path, side: Path, kept: Path, identity: str, swapped: Failpoint) -> None:
    """Exchange `side` and `place` atomically; rename the old folder to `kept`.

    Idempotent: a call may follow a crash.
    """
    # after a crash the new folder may be in place already: a second exchange would undo the first
    if not is_made_by(place, identity):
        swap(side, place)
        # Durable before the rename: the mark and both names must agree after a power failure.
        sync_folder(place.parent)
        hit(swapped)
    # After the exchange this name has the old folder.
    if side.exists():
        with written(kept):
            side.rename(kept)
            sync_folder(kept.parent)
