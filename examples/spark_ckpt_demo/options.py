"""Options of the demo."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

from spark_ckpt.errors import ConfigInvalid

_EARLIEST_PERCENT, _LATEST_PERCENT = 25.0, 60.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of one demo.

    - `folder`: None for a temporary one.
    - `kafka`: servers, None for files and Delta.
    - `kill_after`: percent of the flights, None for a random share.
    - `progress`: drivers show their progress on the stdout of the demo.
    """

    folder: Path | None = None
    kafka: str | None = None
    kill_after: float | None = None
    progress: bool = False

    def percent(self) -> float:
        """Return the share of the flights after which the driver is killed, in percent."""
        return self.kill_after or SystemRandom().uniform(_EARLIEST_PERCENT, _LATEST_PERCENT)


def working_folder(folder: Path | None) -> Path:
    """Return a new or empty folder, a temporary one if none is given. Raises `ConfigInvalid`."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="spark-ckpt-demo-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise ConfigInvalid(f"{folder} cannot be used: {error.strerror}", hint="give another --dir") from error
    if occupied:
        raise ConfigInvalid(f"{folder} is not empty", hint="give a new folder: --dir DIR")
    return folder.absolute()
