"""A folder that a rewind made takes the place of the one before, which is kept under another name.

A mark in it says which rewind made it: so a command that died between the steps knows which of the two has the place.
"""

from __future__ import annotations

import json
from pathlib import Path

from spark_ckpt.failpoints import Failpoint, hit
from spark_rewind.durable import sync_folder, write_new, written
from spark_rewind.swapping import swap

MARK = ".spark-ckpt-rewind.json"
"""In a folder that a rewind made: which one did."""


def write_mark(folder: Path, identity: str, made_of: str) -> None:
    """Say who made a folder, and what the one before will be called. Raises `RewindNotPermitted`."""
    write_new(folder / MARK, json.dumps({"rewind": identity, "made_of": made_of}).encode())


def is_made_by(folder: Path, identity: str) -> bool:
    """Whether a rewind made a folder."""
    try:
        return bool(json.loads((folder / MARK).read_bytes())["rewind"] == identity)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def put_in_place(place: Path, side: Path, kept: Path, identity: str, swapped: Failpoint) -> None:
    """`side` takes the place, in one step; what was there gets the name `kept`. May be called again after a crash."""
    if not is_made_by(place, identity):
        swap(side, place)
        sync_folder(place.parent)
        hit(swapped)
    if side.exists():
        with written(kept):
            side.rename(kept)
            sync_folder(kept.parent)
