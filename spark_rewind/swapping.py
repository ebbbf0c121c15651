"""Atomic exchange of two folders, so that a checkpoint's place is never empty.

A query that started on an empty place would start from the beginning.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from pathlib import Path

from spark_ckpt.errors import RewindNotPermitted

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
    failed = call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if failed:
        code = ctypes.get_errno()
        raise RewindNotPermitted(f"{one} and {other} cannot change names: {os.strerror(code)}", hint=_HINT)


def check_swap(folder: Path) -> None:
    """Check that folders in a folder can be exchanged, with two temporary folders. Raises `RewindNotPermitted`."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".rewind-") as tried:
            one, other = Path(tried, "one"), Path(tried, "other")
            one.mkdir()
            other.mkdir()
            swap(one, other)
    except OSError as error:
        hint = "run as a user that may make folders there; nothing was changed"
        raise RewindNotPermitted(f"{folder}: {error.strerror}", hint=hint) from error
