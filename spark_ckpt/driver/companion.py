"""Optional services that run next to a run; the run does not depend on them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

_log = logging.getLogger(__name__)


class Companion(Protocol):
    """A service that starts after the run and closes after its end."""

    def start(self) -> None:
        """Start in the background."""

    def close(self) -> None:
        """End soon."""


def start(companions: Iterable[Companion]) -> None:
    """Start the companions of a run that has begun."""
    for companion in companions:
        try:
            companion.start()
        except Exception:  # noqa: BLE001 - the query runs already: without the rest of the start nothing would watch it
            _log.exception("%s did not start", type(companion).__name__)


def close(companions: Iterable[Companion]) -> None:
    """Close the companions of a run."""
    for companion in companions:
        try:
            companion.close()
        except Exception:  # noqa: BLE001 - a companion cannot fail a run that is over
            _log.exception("%s did not close", type(companion).__name__)
