"""Interface of the demo's displays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from spark_ckpt.store.epoch_log import EpochLog

Watch = Callable[[int, str], None]
"""Callback with the number of finished items and a note."""


class Display(Protocol):
    """Receives the story. All calls come from one thread."""

    def step(self, title: str) -> None:
        """Begin a new part."""

    def say(self, text: str) -> None:
        """Show a sentence."""

    def watching(self, what: str, total: int) -> AbstractContextManager[Watch]:
        """Show the progress of a long step."""

    def epochs(self, log: EpochLog) -> None:
        """Show the epochs of the job."""

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Show a small table."""
