"""Replacement of a folder by one that a rewind made. The old folder is kept under another name.

A mark in the new folder names its rewind. After a crash between two steps, it tells which folder is in place.
"""

from __future__ import annotations

import json
from pathlib import Path

from spark_ckpt.failpoints import Failpoint, hit
from spark_rewind.durable import sync_folder, write_new, written
from spark_rewind.swapping import swap

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
        sync_folder(place.parent)
        hit(swapped)
    if side.exists():
        with written(kept):
            side.rename(kept)
            sync_folder(kept.parent)
