"""Optional services that run next to a run; the run does not depend on them."""

from __future__ import annotations

from typing import Protocol


class Companion(Protocol):
    """A service that starts after the run and closes after its end."""

    def start(self) -> None:
        """Start in the background."""

    def close(self) -> None:
        """End soon."""
