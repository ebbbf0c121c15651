"""When a companion of running queries pins a point. Decisions only: moments go in, in milliseconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass

RETRY_MS_MAX = 60_000


@dataclass(slots=True)
class PinSchedule:
    """One pin at a time, `every_ms` after the one before, and only if queries have moved since.

    `newest_ms`: when the newest point was taken, by whomever; None as long as that is not known.
    """

    every_ms: int
    newest_ms: int | None = None
    _moved: bool = False
    _busy: bool = False
    _not_before_ms: int = 0

    def moved(self) -> None:
        """A query has done a batch."""
        self._moved = True

    def begins(self, now_ms: int) -> bool:
        """Whether a pin is due. If so it has begun, and none is due before `pinned`, `passed` or `failed` says that it is over."""
        if self._busy or not self._moved or now_ms < self._not_before_ms or not self._is_time(now_ms):
            return False
        self._busy, self._moved = True, False
        return True

    def passes(self, now_ms: int, newest_ms: int | None) -> bool:
        """Whether somebody else's point, the newest there is, makes this pin needless. If so it is over."""
        if newest_ms is not None:
            self.newest_ms = max(newest_ms, self.newest_ms or 0)
        if self._is_time(now_ms):
            return False
        self._busy, self._moved = False, True
        return True

    def pinned(self, taken_at_ms: int) -> None:
        """A pin is over, and there is a point."""
        self._busy, self.newest_ms = False, taken_at_ms

    def failed(self, now_ms: int) -> None:
        """A pin is over without a point. It is tried again before long."""
        self._busy, self._moved = False, True
        self._not_before_ms = now_ms + min(self.every_ms, RETRY_MS_MAX)

    def _is_time(self, now_ms: int) -> bool:
        return self.newest_ms is None or now_ms - self.newest_ms >= self.every_ms
