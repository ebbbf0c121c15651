"""A thread that looks at something while a context lasts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Sampling(ABC):
    """`_sample` runs in a thread until `_ended` is set, which leaving the context does."""

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
        """Look, again and again."""
