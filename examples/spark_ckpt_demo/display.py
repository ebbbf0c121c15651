"""Who watches the demo: a terminal, a log, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from spark_ckpt.store.epoch_log import EpochLog

Watch = Callable[[int, str], None]
"""Called with what is done so far, and a note."""


class Display(Protocol):
    """Hears the story. Calls come from one thread."""

    def step(self, title: str) -> None:
        """A new part begins."""

    def say(self, text: str) -> None:
        """A sentence."""

    def watching(self, what: str, total: int) -> AbstractContextManager[Watch]:
        """Something that takes a while."""

    def epochs(self, log: EpochLog) -> None:
        """The epochs of the job."""

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A small table."""
