"""A thread that takes samples while a context lasts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Sampling(ABC):
    """A context that runs `_sample` in a thread; leaving the context sets `_ended`, which ends the thread."""

    def __init__(self, name: str) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @abstractmethod
    def _sample(self) -> None:
        """Take samples until `_ended` is set."""
