"""Which Python Spark's workers are, and whether it is this one."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def chosen_python() -> str:
    """The interpreter that a session which starts now gives its workers, as it is written."""
    return os.environ.get("PYSPARK_PYTHON") or "python3"


def is_this_python(written: str) -> bool:
    """Whether a command starts this process's interpreter with its packages.

    Two virtual environments may link to one binary: what counts is where the command lies, beside where it leads.
    """
    found = shutil.which(written)
    return found is not None and _place(found) == _place(sys.executable)


def _place(command: str) -> tuple[Path, Path]:
    path = Path(command).absolute()
    return path.parent, path.resolve()
