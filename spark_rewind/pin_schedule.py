"""Schedule of automatic pins. Pure rules: times come in as milliseconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass

RETRY_MS_MAX = 60_000


@dataclass(slots=True)
class PinSchedule:
    """At most one pin at a time, `every_ms` after the newest point, and only if queries progressed since.

    `newest_ms`: time of the newest point of any program; None until it is known.
    """

    every_ms: int
    newest_ms: int | None = None
    _moved: bool = False
    _busy: bool = False
    _not_before_ms: int = 0

    def moved(self) -> None:
        """Record that a query completed a batch."""
        self._moved = True

    def begins(self, now_ms: int) -> bool:
        """Return true if a pin is due; it then counts as begun.

        No other pin is due until `pinned`, `passes` or `failed` ends this one.
        """
        if self._busy or not self._moved or now_ms < self._not_before_ms or not self._is_time(now_ms):
            return False
        self._busy, self._moved = True, False
        return True

    def passes(self, now_ms: int, newest_ms: int | None) -> bool:
        """Return true if a point of another program, taken at `newest_ms`, makes this pin unnecessary.

        The pin then ends.
        """
        if newest_ms is not None:
            self.newest_ms = max(newest_ms, self.newest_ms or 0)
        if self._is_time(now_ms):
            return False
        self._busy, self._moved = False, True
        return True

    def pinned(self, taken_at_ms: int) -> None:
        """Record that a pin ended with a point."""
        self._busy, self.newest_ms = False, taken_at_ms

    def failed(self, now_ms: int) -> None:
        """Record that a pin ended without a point. The next try follows after a minute at most."""
        self._busy, self._moved = False, True
        self._not_before_ms = now_ms + min(self.every_ms, RETRY_MS_MAX)

    def _is_time(self, now_ms: int) -> bool:
        return self.newest_ms is None or now_ms - self.newest_ms >= self.every_ms
