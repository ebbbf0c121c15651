"""The folder on this host in which one incarnation keeps local levels of state."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from spark_ckpt.storage_errors import typed_errors_at


class LocalFolder:
    """Of incarnation number `incarnation`, in the job's folder `cache`."""

    def __init__(self, cache: Path, incarnation: int) -> None:
        self._cache = cache
        self._incarnation = incarnation
        self.path = cache / f"i{incarnation}"

    def make(self, levels: Path | None = None) -> None:
        """Make it, with the levels that a standby has kept in a folder beside it. A driver that was replaced may still run on
        this host and clean up after itself: what belongs to the incarnation before stays. Raises a `StoreOutage`."""
        for left in self._cache.glob("i*"):
            if left.name[1:].isdigit() and int(left.name[1:]) < self._incarnation - 1:
                shutil.rmtree(left, ignore_errors=True)
        self.remove()
        if levels is not None:
            with suppress(OSError):  # derived data: without it the first batch makes it
                levels.rename(self.path)
        with typed_errors_at(str(self.path)):
            self.path.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """Nothing is left of it."""
        shutil.rmtree(self.path, ignore_errors=True)
