"""The primary's part in the checkpoint lease: issue one lease at a time, estimate the duration of checkpoints.

    FREE -> ISSUING -> WAITING -> FREE

A machine is created at each election and dropped when the replica is deposed.

- A lease is over in one of three cases. Its holder reports a checkpoint that includes it. The host knows that its holder will not
  use it. Or its whole time has passed on this primary's clock, counted from when the primary knew it: late is safe. The
  seed's new primary continues with the deadline of the old one. Here the time starts again, which is safe for any clock
  within the allowed rates.
- A primary that was itself the holder waits like any other. Pre-empting its own lease is the published model's
  twelve-state counterexample: after a crash it would execute the lease again.
- The primary waits for an append with unknown outcome: the log may still choose it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from checkpoint_protocols.ids import Incarnation, ProcessId
from checkpoint_protocols.lease.messages import (
    AppendLease,
    HealthReport,
    HealthReported,
    Lease,
    LeaseChosen,
    LeaseReturned,
    LeaseSettings,
    Terms,
    Ticked,
    Turn,
    Turns,
    Watched,
    turns_after,
)
from checkpoint_protocols.lease.rotation import Estimate, budget_of, first_estimate, pick, weights
from checkpoint_protocols.machine import Effect, Event, Machine, rows
from checkpoint_protocols.vocabulary import Note


class PrimaryPhase(Enum):
    """Phase of a primary."""

    FREE = "no lease is out"
    ISSUING = "a lease is on its way into the log"
    WAITING = "a lease is out"


P = PrimaryPhase

_EVENTS = (HealthReported, Ticked, LeaseChosen, LeaseReturned)


class Primary(Machine[PrimaryPhase]):
    """One term of one primary. `inherited` and `turns` are what its replica has executed; `local_ms` is the time of its
    election.
    """

    PHASES = PrimaryPhase
    EVENTS = _EVENTS
    TABLE = rows(
        {
            P.FREE: {HealthReported: "_on_report", Ticked: "_on_tick_free"},
            P.ISSUING: {HealthReported: "_on_report", Ticked: "_on_tick_issuing", LeaseChosen: "_on_chosen"},
            P.WAITING: {
                HealthReported: "_on_report_waiting", Ticked: "_on_tick_waiting", LeaseReturned: "_on_returned",
            },
        },
        _EVENTS,
    )  # fmt: skip

    def __init__(
        self,
        me: ProcessId,
        boot: int,
        settings: LeaseSettings,
        inherited: Lease | None,
        turns: Turns,
        local_ms: int,
    ) -> None:
        super().__init__(P.FREE, Incarnation(boot))
        self.me = me
        self.settings = settings
        self.turns = turns
        self.lease: Lease | None = None
        self._watched: Watched | None = None
        self.asked: Terms | None = None
        """Terms of the append in progress."""
        self._estimates: dict[ProcessId, Estimate] = {}
        self.heard: dict[ProcessId, tuple[HealthReport, int]] = {}
        """Newest report of every replica, and its time of arrival."""
        self._counted_from: int | None = None
        """Arrival of the report that the outstanding lease answers. None: another primary issued the lease."""
        if inherited is not None:
            self._wait(inherited, local_ms)

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        self._ensure((self.lease is not None) == (self.phase is P.WAITING), "a lease is out iff it is waited for")
        self._ensure((self.asked is not None) == (self.phase is P.ISSUING), "terms are on their way iff issuing")
        self._ensure(self.asked is None or self.asked.holder != self.me, "no primary gives itself a lease")

    def candidates(self, local_ms: int) -> dict[ProcessId, int]:
        """Return the health of every replica that may have the next lease at `local_ms`."""
        fresh = local_ms - self.settings.fresh_ms
        return {node: report.health for node, (report, at) in sorted(self.heard.items()) if at >= fresh}

    def weights(self, local_ms: int) -> Mapping[ProcessId, int]:
        """Return the weights that a draw at `local_ms` uses."""
        return weights(self.candidates(local_ms), self.turns, self.settings)

    def is_due(self, local_ms: int) -> bool:
        """Return True if a tick at `local_ms` would have an effect."""
        if self.phase is P.WAITING:
            return self._is_over(local_ms)
        return self.phase is P.FREE and bool(self.candidates(local_ms))

    @property
    def deadline_ms(self) -> int:
        """The outstanding lease is over after this time; 0 if none is out."""
        return 0 if self._watched is None else self._watched.deadline_ms

    def estimate(self, node: ProcessId) -> Estimate:
        """Return the estimate of the lease time that the replica needs."""
        last_ttl_ms = self.turns.get(node, Turn()).ttl_ms
        return self._estimates.get(node) or first_estimate(last_ttl_ms, self.settings)

    # -- reports ---------------------------------------------------------------------------------------------

    def _stale(self, event: Event) -> str | None:
        if isinstance(event, LeaseReturned):
            out = None if self.lease is None else self.lease.token
            return None if event.token == out else f"lease {event.token} is not out"
        if not isinstance(event, HealthReported) or event.report.node not in self.heard:
            return None
        known, theirs = self.heard[event.report.node][0], event.report
        # Heartbeats can overtake each other; an old one would make its content look fresh.
        # Boots first: a clock of a new life begins again, and its readings are smaller than those of the life before.
        older = (theirs.boot, theirs.clock_ms) < (known.boot, known.clock_ms)
        return f"{theirs.node} has reported later than that" if older else None

    def _on_report(self, event: HealthReported) -> list[Effect]:
        # A primary never gives itself a lease.
        if event.report.node != self.me:
            self.heard[event.report.node] = (event.report, event.local_ms)
        return []

    def _on_report_waiting(self, event: HealthReported) -> list[Effect]:
        self._on_report(event)
        lease = self._outstanding()
        # The payload is the newest entry in the published checkpoint. The lease's own entry is in it, so it is at least the
        # token. An earlier checkpoint of the holder ends before the lease: a replica that executes a lease loses any older right.
        if event.report.node != lease.terms.holder or event.report.payload < lease.token:
            return []
        return self._over(lease, event.local_ms)

    # -- leases ----------------------------------------------------------------------------------------------

    def _on_tick_free(self, event: Ticked) -> list[Effect]:
        shares = self.weights(event.local_ms)
        return self._issue(pick(shares, event.draw)) if shares else []

    def _on_tick_issuing(self, _event: Ticked) -> list[Effect]:
        return []

    def _on_tick_waiting(self, event: Ticked) -> list[Effect]:
        if not self._is_over(event.local_ms):
            return []
        # Seed 002, "Checkpoint Lease Revocation": a holder at the slowest allowed rate has stopped by now, so the next lease may
        # follow at once.
        return [*self._missed(self._outstanding()), *self._on_tick_free(event)]

    def _on_returned(self, event: LeaseReturned) -> list[Effect]:
        """End the lease. Its duration is not known, so the estimate stays."""
        holder = self._outstanding().terms.holder
        self._release()
        return [Note("lease returned", f"{holder} will not use {event.token}")]

    def _issue(self, holder: ProcessId) -> list[Effect]:
        report, self._counted_from = self.heard[holder]
        ttl_ms = self.estimate(holder).ttl_ms
        # The holder's time starts at its own clock reading in the report, which precedes the issue.
        self.asked = Terms(holder, report.boot, report.clock_ms, budget_of(ttl_ms, self.settings), ttl_ms)
        self.phase = P.ISSUING
        return [AppendLease(self.asked)]

    def _on_chosen(self, event: LeaseChosen) -> list[Effect]:
        if event.lease.terms != self.asked:
            raise self._invalid(event, "this primary has appended another one, and only the primary appends")
        self.asked = None
        # Counted when it is chosen, as each replica counts it when it executes the entry: the next primary continues from equal
        # turns.
        self.turns = turns_after(self.turns, event.lease.terms)
        self._wait(event.lease, event.local_ms)
        return []

    def _wait(self, lease: Lease, local_ms: int) -> None:
        self.lease = lease
        self._watched = Watched(lease.token, lease.terms.ttl_ms, local_ms)
        self.phase = P.WAITING

    def _over(self, lease: Lease, local_ms: int) -> list[Effect]:
        holder = lease.terms.holder
        # An inherited lease has no known begin, so it says nothing about the duration.
        if self._counted_from is not None:
            spent_ms = local_ms - self._counted_from
            self._estimates[holder] = self.estimate(holder).succeeded(spent_ms, self.settings)
        self._release()
        return [Note("lease used", f"{holder} has published under {lease.token}")]

    def _missed(self, lease: Lease) -> list[Effect]:
        holder = lease.terms.holder
        self._estimates[holder] = self.estimate(holder).missed(self.settings)
        self._release()
        alert = [Note("lease alert", f"{holder} needs longer than {self.settings.most_ms} ms")]
        note = Note("lease timed out", f"{holder} under {lease.token}")
        return [note, *(alert if self._estimates[holder].alarming(self.settings) else [])]

    def _release(self) -> None:
        self.lease = self._watched = self._counted_from = None
        self.phase = P.FREE

    def _is_over(self, local_ms: int) -> bool:
        return self._watched is not None and self._watched.is_over(local_ms)

    def _outstanding(self) -> Lease:
        assert self.lease is not None  # noqa: S101 - for the type checker; validate() holds
        return self.lease
