"""Vocabulary of the checkpoint lease's machines and their host: terms, events, effects.

Ringmaster's checkpoint coordination (seed 002, and its published TLA+ model): the replicas of a log take an expensive
checkpoint one at a time, never the primary. The primary appends a lease to the replicated log. The named replica that
executes it may work until its time is up. A published checkpoint carries the lease's index, which the store compares
(`admission`). `replica` is every replica's machine, `primary` the elected one's.

Assumptions about the host:

- The log is linearizable.
- A primary is elected only when it has executed every chosen entry and takes no checkpoint.
- A holder's clock runs at `rate_percent` of any primary's or faster.
- Timers elapse in time.

A process may stop and resume at any moment. Then no timer helps, only the store's comparison (erratum E10).

Clocks are local and count milliseconds of one process life. A new life has a new boot number, and clock readings of
different boots do not compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.machine import Effect, Event


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Settings of a user; times in milliseconds."""

    rate_percent: int = 70
    """Rate of the slowest holder's clock, compared with a primary's, in percent. The host expels slower replicas."""
    least_ms: int = 10_000
    first_ms: int = 60_000
    """Lease time of a replica without history."""
    most_ms: int = 3_600_000
    margin_ms: int = 1_000
    """Least allowance for the delay of heartbeats and the log. Without it, equal times leave none."""
    fresh_ms: int = 5_000
    """Greatest age of a candidate's health report. The age shortens the holder's time."""
    rounds: int = 3
    """A replica that others preceded `rounds` times the number of secondaries is next."""
    least_health: int = 5
    """Least health in a replica's weight, in percent."""
    alert_after: int = 3
    """Timeouts in a row at `most_ms` before an alert for an operator."""


@dataclass(frozen=True, slots=True)
class Terms:
    """A lease as it is appended to the log. `reported_ms` is the holder's own clock, known to precede the issue."""

    holder: ProcessId
    boot: int
    reported_ms: int
    budget_ms: int
    """Time for the holder on its own clock, from `reported_ms`."""
    ttl_ms: int
    """Time on the primary's clock, from the moment it is chosen or inherited."""

    @property
    def until_ms(self) -> int:
        """Time at which the holder must have stopped, on its clock of that boot."""
        return self.reported_ms + self.budget_ms


@dataclass(frozen=True, slots=True)
class Lease:
    """A chosen lease. `token` is its index in the log: unique and increasing."""

    token: int
    terms: Terms


@dataclass(frozen=True, slots=True)
class Watched:
    """A lease of another process, as its observer knows it.

    `since_ms` is the time at which the observer learnt of `token`, on its own clock. The lease is over when its whole
    time has passed on that clock. Late is safe: the holder's time began before. Clocks are read in whole milliseconds,
    so `ttl_ms` between two readings may be almost one less. So the deadline must be exceeded, not reached.
    """

    token: int
    ttl_ms: int
    since_ms: int

    @property
    def deadline_ms(self) -> int:
        """The lease is over after this time."""
        return self.since_ms + self.ttl_ms

    def is_over(self, local_ms: int) -> bool:
        """Return True if the lease is over at `local_ms`."""
        return local_ms > self.deadline_ms


@dataclass(frozen=True, slots=True)
class Turn:
    """Leases to others since this replica had one, and the length of its last one (0: it had none)."""

    since: int = 0
    ttl_ms: int = 0


Turns = Mapping[ProcessId, Turn]
"""Turn of every replica. Part of the replicated state: a new primary continues from the old one's turns."""


def turns_after(turns: Turns, terms: Terms) -> dict[ProcessId, Turn]:
    """Return the turns after the execution of this lease."""
    passed = {member: Turn(turn.since + 1, turn.ttl_ms) for member, turn in turns.items()}
    return {**passed, terms.holder: Turn(0, terms.ttl_ms)}


@dataclass(frozen=True, slots=True)
class LeasedCheckpoint:
    """A published checkpoint, from which any replica may start: the state after `applied` entries."""

    token: int = 0
    applied: int = 0
    turns: Turns | None = None


@dataclass(frozen=True, slots=True)
class HealthReport:
    """Content of a replica's heartbeat. `health` in percent, `payload` as the replica recorded it."""

    node: ProcessId
    boot: int
    clock_ms: int
    payload: int
    health: int = 100


class Admission(Enum):
    """Answer of the checkpoint store to a publish."""

    ACCEPTED = "newer than any other: published"
    REPEATED = "this very one is published: nothing changes"
    FENCED = "a newer one is published: its writer's lease is long over"


def admission(newest: int, token: int) -> Admission:
    """Apply the store's rule. `newest` is the token of the last published checkpoint, 0 for none.

    The store must compare and write atomically.
    """
    if token == newest:
        return Admission.REPEATED
    return Admission.ACCEPTED if token > newest else Admission.FENCED


# ---- events of a replica -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EntryExecuted(Event):
    """The replica executed the log's entry `index`, counted from 1; `terms` is set if it is a lease."""

    index: int
    terms: Terms | None
    local_ms: int


@dataclass(frozen=True, slots=True)
class CheckpointStarted(Event):
    """The host is about to begin the work that `TakeCheckpoint` allowed."""

    token: int
    local_ms: int


@dataclass(frozen=True, slots=True)
class CheckpointWritten(Event):
    """The work is done: all of it is uploaded and not visible."""

    token: int
    local_ms: int


@dataclass(frozen=True, slots=True)
class CheckpointFailed(Event):
    """The work cannot be done."""

    token: int


@dataclass(frozen=True, slots=True)
class PublishAnswered(Event):
    """The checkpoint store has compared the token."""

    token: int
    admission: Admission


@dataclass(frozen=True, slots=True)
class LeaseElapsed(Event):
    """The lease's time is up on the holder's clock."""

    token: int


@dataclass(frozen=True, slots=True)
class Elected(Event):
    """This replica is primary from now on."""


@dataclass(frozen=True, slots=True)
class Deposed(Event):
    """This replica is no longer primary."""


# ---- effects of a replica ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeCheckpoint(Effect):
    """Begin when convenient (`CheckpointStarted`). Until the end of the work no entry is executed; voting continues."""

    token: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint(Effect):
    """Do not begin, or stop working and delete the uploaded files."""

    token: int


@dataclass(frozen=True, slots=True)
class PublishCheckpoint(Effect):
    """Make the checkpoint visible if the store admits its token."""

    checkpoint: LeasedCheckpoint


@dataclass(frozen=True, slots=True)
class RecordPayload(Effect):
    """Make the payload of heartbeats durable, before anything else is sent."""

    payload: int


# ---- the primary -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HealthReported(Event):
    """A heartbeat arrived; `local_ms` is the primary's clock."""

    report: HealthReport
    local_ms: int


@dataclass(frozen=True, slots=True)
class Ticked(Event):
    """Time to check if a replica may have a lease. `draw` is a random number in [0, 2**32)."""

    local_ms: int
    draw: int


@dataclass(frozen=True, slots=True)
class LeaseChosen(Event):
    """The primary has executed its own lease from the log."""

    lease: Lease
    local_ms: int


@dataclass(frozen=True, slots=True)
class LeaseReturned(Event):
    """The holder will not use the lease: it has said so, or its process life has ended. It published nothing."""

    token: int


@dataclass(frozen=True, slots=True)
class AppendLease(Effect):
    """Append the terms to the log. If the outcome is unknown, the primary waits until it is known."""

    terms: Terms
