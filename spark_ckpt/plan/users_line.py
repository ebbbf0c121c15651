"""The line of the user's program that is executing, for errors that surface later."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_OURS = str(Path(__file__).parents[1]) + os.sep  # with the separator: `spark_ckpt_kafka` is another package


def users_line() -> str:
    """Return file and line of the nearest caller outside of this package; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back  # type: ignore[assignment]
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
