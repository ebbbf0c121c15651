"""When a second driver may run the job: its lease was given up, its holder is gone, or its term has passed in silence.

    WATCHING -> TAKING -> LEADING
        ^         |
        +--lost---+

A lease is a row of the job's log, and each renewal is another one: the row's number is the lease's token. The term is measured on
this driver's own clock, from when it learnt of the token (`protocol.lease.messages.Watched`, as for a checkpoint lease); what
another host's clock said is never looked at. The rule bounds *when* a holder may be replaced. *Whether* is the log's to say: the
new incarnation is appended only if the lease's newest row is still the one whose end was seen here, by compare-and-swap.

Silence counts while the log can be read, and only then: behind an outage, or a pause of this driver, a holder gets its time to
renew. So a silent holder of a log that can be read is replaced after its term, `margin_ms` and the pause between two looks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from checkpoint_protocols.ids import Incarnation
from checkpoint_protocols.lease.messages import Watched
from checkpoint_protocols.machine import IGNORE_STALE, Effect, Event, Machine, rows

NO_OTHERS = -1
"""No lease has this token: a run goes on under its own lease, and takes no other one for ended, whatever clocks say."""


@dataclass(frozen=True, slots=True)
class LeaseRead(Event):
    """The log was read, at `local_ms` of this driver's clock. `token`: of the newest row that began, renewed or freed the lease of
    incarnation `lease_of`. `free`: nobody ever had it, or it was given up."""

    lease_of: int
    token: int
    ttl_ms: int
    free: bool
    local_ms: int


@dataclass(frozen=True, slots=True)
class HolderGone(Event):
    """The process that began incarnation `lease_of` cannot be running any more: its host says so, and it is this one."""

    lease_of: int


@dataclass(frozen=True, slots=True)
class TakeoverLost(Event):
    """The log has moved on since the lease's end was seen: its holder has renewed it, or another standby was faster."""


@dataclass(frozen=True, slots=True)
class TakeoverWon(Event):
    """The log has this driver's incarnation."""


@dataclass(frozen=True, slots=True)
class TakeOver(Effect):
    """Append an incarnation if the lease's newest row is still `token`. Answered by `TakeoverWon` or `TakeoverLost`."""

    token: int
    why: str


class StandbyPhase(Enum):
    """Where a standby is."""

    WATCHING = "another driver may hold the lease"
    TAKING = "an incarnation is on its way into the log"
    LEADING = "the job is this driver's"


P = StandbyPhase

_EVENTS = (LeaseRead, HolderGone, TakeoverLost, TakeoverWon)


class Standby(Machine[StandbyPhase]):
    """One driver's wait. `margin_ms`: beyond the term, for what a renewal needs on its way. `gap_ms`: more time than this between
    two readings of the log is no silence of the holder."""

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
        """The lease as this driver knows it; None before the first reading."""
        self.lease_of = 0
        """The incarnation whose lease it is."""
        self.renewals = 0
        """How often the lease was renewed while this driver watched."""
        self._read_ms = 0

    def validate(self) -> None:
        """What always holds between two events."""
        self._ensure(self.watched is not None or self.phase is P.WATCHING, "nobody takes what he has not seen")

    def _on_read(self, event: LeaseRead) -> list[Effect]:
        self._learn(event)
        watched = self._known()
        if event.free:
            return self._take(watched, "it was given up" if event.lease_of else "nobody has had it")
        if watched.is_over(event.local_ms):
            return self._take(watched, f"not renewed for its {event.ttl_ms} ms")
        return []

    def _learn(self, event: LeaseRead) -> None:
        known, gap_ms = self.watched, event.local_ms - self._read_ms
        self._read_ms = event.local_ms
        if known is None or known.token != event.token:
            renewed = known is not None and self.lease_of == event.lease_of
            self.renewals += renewed and not event.free
            self.lease_of = event.lease_of
            self.watched = Watched(event.token, event.ttl_ms + self.margin_ms, event.local_ms)
        elif gap_ms > self.gap_ms:
            self.watched = replace(known, since_ms=known.since_ms + gap_ms)

    def _on_gone(self, event: HolderGone) -> list[Effect]:
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
