"""The Python interpreter of Spark's workers, and its comparison with this one."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def chosen_python() -> str:
    """Return the command of the interpreter that a session started now gives its workers."""
    return os.environ.get("PYSPARK_PYTHON") or "python3"


def is_this_python(written: str) -> bool:
    """Return True if a command starts this process's interpreter with its packages.

    Two virtual environments may link to one binary, so the folder of the command counts as well as the resolved path.
    """
    found = shutil.which(written)
    return found is not None and _place(found) == _place(sys.executable)


def _place(command: str) -> tuple[Path, Path]:
    path = Path(command).absolute()
    return path.parent, path.resolve()
