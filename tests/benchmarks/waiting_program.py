"""Two processes on one folder: the first leads, the second reports itself warm. Both run until they are killed."""

from __future__ import annotations

import signal
from pathlib import Path

from benchmarks.systems import Run

if __name__ == "__main__":
    folder = Path(Run.of_command_line().folder)
    try:
        (folder / "leads").touch(exist_ok=False)
    except FileExistsError:
        (folder / "warm").touch()
    signal.pause()
