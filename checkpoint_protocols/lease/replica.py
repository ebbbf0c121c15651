"""Every replica's part in the checkpoint lease: execute leases from the log, hold one, release it in time.

    FOLLOWING -> GRANTED -> TAKING -> PUBLISHING -> FOLLOWING          any but the last two -> LEADING -> FOLLOWING

- The time of a lease starts at a reading of this replica's own clock that precedes the issue. The reading is in the
  health report that the lease answers. A timer that starts when the entry is *executed* is too late by the replica's
  lag behind the log (erratum E10).
- A lease names the boot it was issued for. A replica that executes it again after a crash refuses it: its clock has
  restarted, and the primary that waited for the old boot may be gone.
- A primary takes no checkpoint. Later in the same life it does not use a lease that it was granted before, either.
- Each step of the work checks the time, not only the timer: a suspended process may take the step first. Between the
  last check and the store only the store's comparison of tokens helps.
"""

from __future__ import annotations

from enum import Enum

from checkpoint_protocols.ids import Incarnation, ProcessId, TimerId
from checkpoint_protocols.lease.messages import (
    Admission,
    CheckpointFailed,
    CheckpointStarted,
    CheckpointWritten,
    Deposed,
    DiscardCheckpoint,
    Elected,
    EntryExecuted,
    Lease,
    LeasedCheckpoint,
    LeaseElapsed,
    PublishAnswered,
    PublishCheckpoint,
    RecordPayload,
    TakeCheckpoint,
    Terms,
    Turn,
    Turns,
    turns_after,
)
from checkpoint_protocols.machine import INVALID, Effect, Event, Machine, rows
from checkpoint_protocols.vocabulary import Note, SetTimer


class ReplicaPhase(Enum):
    """Phase of a replica."""

    FOLLOWING = "no lease to use"
    GRANTED = "may take a checkpoint"
    TAKING = "takes one; executes nothing"
    PUBLISHING = "the store compares its token; executes nothing"
    LEADING = "is the primary"


P = ReplicaPhase

_EVENTS = (
    EntryExecuted,
    CheckpointStarted,
    CheckpointWritten,
    CheckpointFailed,
    PublishAnswered,
    LeaseElapsed,
    Elected,
    Deposed,
)


class Replica(Machine[ReplicaPhase]):
    """One life of one replica, begun from `checkpoint`; `members` are all replicas, including this one."""

    PHASES = ReplicaPhase
    EVENTS = _EVENTS
    TABLE = rows(
        {
            P.FOLLOWING: {
                EntryExecuted: "_on_entry",
                Elected: "_on_elected",
            },
            P.GRANTED: {
                EntryExecuted: "_on_entry",
                CheckpointStarted: "_on_started",
                LeaseElapsed: "_on_elapsed",
                Elected: "_on_elected",
            },
            P.TAKING: {
                CheckpointWritten: "_on_written",
                CheckpointFailed: "_on_failed",
                LeaseElapsed: "_on_elapsed",
            },
            P.PUBLISHING: {
                PublishAnswered: "_on_answered",
                LeaseElapsed: "_on_elapsed",
            },
            P.LEADING: {
                EntryExecuted: "_on_entry",
                Elected: INVALID,
                Deposed: "_on_deposed",
            },
        },
        _EVENTS,
    )

    def __init__(self, me: ProcessId, boot: int, members: tuple[ProcessId, ...], checkpoint: LeasedCheckpoint) -> None:
        super().__init__(P.FOLLOWING, Incarnation(boot))
        self.me = me
        self.boot = boot
        self.applied = checkpoint.applied
        """Entries executed."""
        self.turns: Turns = checkpoint.turns or {member: Turn() for member in sorted(members)}
        self.lease: Lease | None = None
        """Newest lease executed in this life, unless it was this replica's and is used up."""
        self._right: Lease | None = None
        """The lease that this replica may use."""

    @property
    def may_take(self) -> bool:
        """True if a checkpoint may begin or is being taken."""
        return self.phase in (P.GRANTED, P.TAKING)

    @property
    def taking(self) -> bool:
        """True while the expensive work runs."""
        return self.phase is P.TAKING

    @property
    def executes(self) -> bool:
        """True if the host may execute entries."""
        return self.phase not in (P.TAKING, P.PUBLISHING)

    @property
    def until_ms(self) -> int | None:
        """End of the right to work, on this life's clock. None without a right."""
        return None if self._right is None else self._right.terms.until_ms

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        right = self._right
        at_work = self.phase in (P.GRANTED, P.TAKING, P.PUBLISHING)
        self._ensure((right is not None) == at_work, "there is a right iff it is granted or used")
        self._ensure(right is None or right == self.lease, "only the newest lease gives a right")
        self._ensure(right is None or right.terms.holder == self.me, "only the named replica has a right")
        self._ensure(right is None or right.terms.boot == self.boot, "only the named life has a right")
        self._ensure(right is None or right.token <= self.applied, "the lease is among the executed entries")

    # -- at the door -----------------------------------------------------------------------------------------

    def _stale(self, event: Event) -> str | None:
        token = getattr(event, "token", None)
        if token is None or (self._right is not None and self._right.token == token):
            return None
        return f"lease {token} is not held here any more"

    # -- the log ---------------------------------------------------------------------------------------------

    def _on_entry(self, event: EntryExecuted) -> list[Effect]:
        # A skipped entry could be the next lease, which ends this replica's right.
        if event.index != self.applied + 1:
            raise self._invalid(event, f"{self.applied} entries are executed here")
        self.applied = event.index
        return [] if event.terms is None else self._execute(Lease(event.index, event.terms), event.local_ms)

    def _execute(self, lease: Lease, local_ms: int) -> list[Effect]:
        self.turns = turns_after(self.turns, lease.terms)
        # The primary appends a lease only when the one before is over, so this replica is late.
        effects = [] if self._right is None else self._give_up("the next lease is executed")
        self.lease = lease
        return effects + (self._grant(lease, local_ms) if self._is_for_me(lease.terms, local_ms) else [])

    def _is_for_me(self, terms: Terms, local_ms: int) -> bool:
        # This life's clock does not compare with readings of an earlier boot.
        mine = terms.holder == self.me and terms.boot == self.boot
        return mine and local_ms < terms.until_ms and self.phase is not P.LEADING

    def _grant(self, lease: Lease, local_ms: int) -> list[Effect]:
        self._right = lease
        self.phase = P.GRANTED
        token, until_ms = lease.token, lease.terms.until_ms
        # The timer ends with the lease; one that starts here in full length would end too late (erratum E10).
        timer = SetTimer("lease", until_ms - local_ms, TimerId(token), LeaseElapsed(token))
        return [timer, TakeCheckpoint(token, until_ms)]

    # -- the work --------------------------------------------------------------------------------------------

    def _on_started(self, event: CheckpointStarted) -> list[Effect]:
        # A process that was suspended takes this step before its timer is handled.
        if self._is_over(event.local_ms):
            return self._give_up("the time was up before the work began")
        self.phase = P.TAKING
        return []

    def _on_written(self, event: CheckpointWritten) -> list[Effect]:
        if self._is_over(event.local_ms):
            return self._give_up("the time was up before the work was done")
        self.phase = P.PUBLISHING
        return [PublishCheckpoint(LeasedCheckpoint(event.token, self.applied, self.turns))]

    def _on_answered(self, event: PublishAnswered) -> list[Effect]:
        if event.admission is Admission.FENCED:
            return self._give_up("a newer checkpoint is published")
        self._drop_right()
        self.lease = None
        # The next heartbeats carry this payload, and the primary sees that the lease is used.
        return [RecordPayload(self.applied)]

    def _on_failed(self, event: CheckpointFailed) -> list[Effect]:
        return self._give_up(f"checkpoint {event.token} failed")

    def _on_elapsed(self, event: LeaseElapsed) -> list[Effect]:
        return self._give_up(f"the time of lease {event.token} is up")

    def _is_over(self, local_ms: int) -> bool:
        until_ms = self.until_ms
        # The holder stops at its deadline, the primary waits beyond its own (`Watched`): both read whole milliseconds, rounded
        # down.
        return until_ms is not None and local_ms >= until_ms

    def _give_up(self, why: str) -> list[Effect]:
        token = self._drop_right()
        return [DiscardCheckpoint(token), Note("lease dropped", why)]

    def _drop_right(self) -> int:
        assert self._right is not None  # noqa: S101 - for the type checker; callers hold one
        token, self._right = self._right.token, None
        self.phase = P.FOLLOWING
        return token

    # -- the primary -----------------------------------------------------------------------------------------

    def _on_elected(self, _event: Elected) -> list[Effect]:
        # Seed 002: the primary never takes a checkpoint. `lease` stays, so its own primary's machine waits for it like for any
        # other's.
        effects = [] if self._right is None else self._give_up("this replica is primary")
        self.phase = P.LEADING
        return effects

    def _on_deposed(self, _event: Deposed) -> list[Effect]:
        self.phase = P.FOLLOWING
        return []
