"""What lives beside a run and may be taken away without the run noticing."""

from __future__ import annotations

from typing import Protocol


class Companion(Protocol):
    """Started when the run has begun, closed when it has ended."""

    def start(self) -> None:
        """Begin, beside the caller."""

    def close(self) -> None:
        """End soon."""
