"""Rules of a standby: it takes over if the lease is freed, its holder is gone, or its term passed without a renewal.

    WATCHING -> TAKING -> LEADING
        ^         |
        +--lost---+

A lease is a row of the job's log, and each renewal is another row. The number of the row is the lease's token. This
driver measures the term on its own clock, and ignores the clocks of other hosts. The term starts at the read of the
token (`protocol.lease.messages.Watched`, as for a checkpoint lease). It only bounds the time at which a holder may be
replaced. The log decides if it is replaced: the new incarnation is appended by compare-and-swap. That succeeds only
if the lease's newest row is still the one that expired here.

Silence counts only while the log can be read. After an outage, or a pause of this driver, a holder gets its time to
renew. So a silent holder of a readable log is replaced after its term, `margin_ms` and the pause between two reads. A
long gap between two reads counts as a short one: if each read is slow, the takeover is late, and still happens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from checkpoint_protocols.ids import Incarnation
from checkpoint_protocols.lease.messages import Watched
from checkpoint_protocols.machine import IGNORE_STALE, Effect, Event, Machine, rows

NO_OTHERS = -1
"""No lease has this token. A run continues under its own lease, and treats no other lease as expired, independent of
clocks.
"""


@dataclass(frozen=True, slots=True)
class LeaseRead(Event):
    """The log was read, at `local_ms` of this driver's clock.

    `token`: number of the newest row that began, renewed or freed the lease of incarnation `lease_of`. `ttl_ms`: term
    of the lease. `free`: the lease was freed, or no driver ever held it.
    """

    lease_of: int
    token: int
    ttl_ms: int
    free: bool
    local_ms: int


@dataclass(frozen=True, slots=True)
class HolderGone(Event):
    """The process that began incarnation `lease_of` no longer runs: it ran on this driver's host, which proves it."""

    lease_of: int


@dataclass(frozen=True, slots=True)
class TakeoverLost(Event):
    """The log moved on after the lease expired: its holder renewed it, or another standby was faster."""


@dataclass(frozen=True, slots=True)
class TakeoverWon(Event):
    """The log has this driver's incarnation."""


@dataclass(frozen=True, slots=True)
class TakeOver(Effect):
    """Append an incarnation if the lease's newest row is still `token`. Answered by `TakeoverWon` or `TakeoverLost`."""

    token: int
    why: str


class StandbyPhase(Enum):
    """Phase of a standby."""

    WATCHING = "another driver may hold the lease"
    TAKING = "an incarnation is on its way into the log"
    LEADING = "the job is this driver's"


P = StandbyPhase

_COUNTED = 4

_EVENTS = (LeaseRead, HolderGone, TakeoverLost, TakeoverWon)


class Standby(Machine[StandbyPhase]):
    """Rules of one standby.

    `margin_ms`: time beyond the term, for the delay of a renewal on its way to the log. `gap_ms`: a longer gap
    between two reads of the log counts as a quarter of `gap_ms` of the holder's silence.
    """

    PHASES = StandbyPhase
    EVENTS = _EVENTS
    TABLE = rows(
        {
            P.WATCHING: {LeaseRead: "_on_read", HolderGone: "_on_gone"},
            P.TAKING: {
                LeaseRead: IGNORE_STALE, HolderGone: IGNORE_STALE, TakeoverLost: "_on_lost", TakeoverWon: "_on_won",
            },
            P.LEADING: {LeaseRead: IGNORE_STALE, HolderGone: IGNORE_STALE},
        },
        _EVENTS,
    )  # fmt: skip

    def __init__(self, margin_ms: int, gap_ms: int) -> None:
        super().__init__(P.WATCHING, Incarnation(0))
        self.margin_ms = margin_ms
        self.gap_ms = gap_ms
        self.watched: Watched | None = None
        """The lease as this driver knows it; None before the first read."""
        self.lease_of = 0
        """Incarnation that holds the lease."""
        self.renewals = 0
        """Number of renewals that this driver has seen."""
        self._read_ms = 0

    def validate(self) -> None:
        """Check the invariant that holds between two events."""
        self._ensure(
            self.watched is not None or self.phase is P.WATCHING, "a standby takes only a lease that it has seen"
        )

    def _on_read(self, event: LeaseRead) -> list[Effect]:
        self._learn(event)
        watched = self._known()
        if event.free:
            return self._take(watched, "it was released" if event.lease_of else "no driver has had it")
        if watched.is_over(event.local_ms):
            return self._take(watched, f"not renewed for its {event.ttl_ms} ms")
        return []

    def _learn(self, event: LeaseRead) -> None:
        # A new token restarts the term on this driver's clock; an outage of the log extends it.
        known, gap_ms = self.watched, event.local_ms - self._read_ms
        self._read_ms = event.local_ms
        if known is None or known.token != event.token:
            renewed = known is not None and self.lease_of == event.lease_of
            # A release moves the token, too, and is no renewal.
            self.renewals += renewed and not event.free
            self.lease_of = event.lease_of
            self.watched = Watched(event.token, event.ttl_ms + self.margin_ms, event.local_ms)
        elif gap_ms > self.gap_ms:
            # A part counts: with a store that takes so long for every read, a dead holder would never be replaced.
            self.watched = replace(known, since_ms=known.since_ms + gap_ms - self.gap_ms // _COUNTED)

    def _on_gone(self, event: HolderGone) -> list[Effect]:
        # A report about an older holder is stale: another driver holds the lease now.
        if self.watched is None or event.lease_of != self.lease_of:
            return []
        return self._take(self.watched, "the process that held it is gone")

    def _take(self, watched: Watched, why: str) -> list[Effect]:
        self.phase = P.TAKING
        return [TakeOver(watched.token, why)]

    def _on_lost(self, _event: TakeoverLost) -> list[Effect]:
        self.phase = P.WATCHING
        return []

    def _on_won(self, _event: TakeoverWon) -> list[Effect]:
        self.phase = P.LEADING
        return []

    def _known(self) -> Watched:
        assert self.watched is not None  # noqa: S101 - for the type checker; `_learn` has set it
        return self.watched


_RENEWALS_PER_LEASE = 3
# Sooner after a missed renewal: with thirds alone, short outages at the wrong moments could silence a driver for its whole
# term. A standby reads between these moments and sees no outage.
_ATTEMPTS_PER_LEASE = 10


def renewal_ms(lease_ms: int) -> int:
    """Return the milliseconds between two renewals."""
    return lease_ms // _RENEWALS_PER_LEASE


def again_ms(lease_ms: int) -> int:
    """Return the milliseconds from a missed renewal to the next attempt."""
    return lease_ms // _ATTEMPTS_PER_LEASE
