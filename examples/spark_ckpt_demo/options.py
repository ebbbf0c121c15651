"""What the demo was asked to do."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

from spark_ckpt.errors import ConfigInvalid

_EARLIEST_PERCENT, _LATEST_PERCENT = 25.0, 60.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`folder`: None is a temporary one. `kafka`: servers, None is files and Delta. `kill_after`: percent or random. `progress`:
    drivers show themselves where the demo tells its story."""

    folder: Path | None = None
    kafka: str | None = None
    kill_after: float | None = None
    progress: bool = False

    def percent(self) -> float:
        """When the driver is killed: after this share of the flights."""
        return self.kill_after or SystemRandom().uniform(_EARLIEST_PERCENT, _LATEST_PERCENT)


def working_folder(folder: Path | None) -> Path:
    """A new or empty folder; a temporary one if none is given. Raises `ConfigInvalid`."""
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
