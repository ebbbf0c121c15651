"""Folder on this host for the local levels of one incarnation's state."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from spark_ckpt.storage_errors import typed_errors_at


class LocalFolder:
    """Folder of incarnation number `incarnation`, in the job's folder `cache`."""

    def __init__(self, cache: Path, incarnation: int) -> None:
        self.path = cache / f"i{incarnation}"
        self.earlier = cache / f"i{incarnation - 1}"

    def make(self, levels: Path | None = None) -> None:
        """Create the folder; `levels`: a standby's folder of levels, which is moved here. Raises a `StoreOutage`.

        The previous incarnation's folder stays: tasks link its levels, as long as they have none of their own.
        """
        remove_older(self.path)
        shutil.rmtree(self.path, ignore_errors=True)
        if levels is not None:
            with suppress(OSError):  # derived data: without it the first batch creates it
                levels.rename(self.path)
        with typed_errors_at(str(self.path)):
            # The end of another run on this host may remove the empty parent between the two steps of the call.
            with suppress(FileNotFoundError):
                self.path.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(parents=True, exist_ok=True)

    def remove_earlier(self) -> None:
        """Remove the previous incarnation's folder. A replaced driver that still runs makes its levels again."""
        shutil.rmtree(self.earlier, ignore_errors=True)

    def remove(self) -> None:
        """Remove both folders, and their parent if nothing is left in it."""
        self.remove_earlier()
        shutil.rmtree(self.path, ignore_errors=True)
        remove_empty(self.path.parent)


def remove_empty(cache: Path) -> None:
    """Remove a job's folder, unless another driver or a standby on this host has its own there."""
    with suppress(OSError):
        cache.rmdir()


def remove_older(own: Path) -> None:
    """Remove the folders of incarnations before the one that precedes that of the folder `own`.

    A folder with another name, such as a standby's, removes none.
    """
    newest = _incarnation(own)
    for left in own.parent.glob("i*"):
        number = _incarnation(left)
        # Levels of an earlier incarnation are derived data; a killed driver left them.
        if newest is not None and number is not None and number < newest - 1:
            shutil.rmtree(left, ignore_errors=True)


def _incarnation(folder: Path) -> int | None:
    digits = folder.name[1:]
    return int(digits) if folder.name.startswith("i") and digits.isdecimal() else None
