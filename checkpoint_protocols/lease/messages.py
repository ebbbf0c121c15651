"""What the checkpoint lease's machines say to each other and to their host: terms, events, effects.

Ringmaster's checkpoint coordination (seed 002, and its published TLA+ model): the replicas of a log take an
expensive checkpoint one at a time, never the primary.  The primary appends a lease to the replicated log; who
executes it and is named may work until its time is up; who publishes shows the lease's index, which the store
compares (`admission`).  `replica` is every replica's machine, `primary` the elected one's.

Assumed of the host: the log is linearizable, a primary is elected only when it has executed every chosen entry
and is not at work on a checkpoint, a holder's clock runs at `rate_percent` of any primary's or faster, timers run
out in time.  A process may stop and go on at any moment: then no timer helps, only the store's comparison
(erratum E10).

Clocks are local and count milliseconds of one life: a new life has a new boot number, and clock readings of
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
    """What a user may set; times in milliseconds."""

    rate_percent: int = 70
    """The slowest holder's clock, compared with a primary's: slower ones are expelled by the host."""
    least_ms: int = 10_000
    first_ms: int = 60_000
    """Lease time of a replica about which nothing is known."""
    most_ms: int = 3_600_000
    margin_ms: int = 1_000
    """Least allowance for what heartbeats and the log take: without it, equal times leave none."""
    fresh_ms: int = 5_000
    """A health report older than this makes no candidate: its age is taken from the holder's time."""
    rounds: int = 3
    """A replica that was passed over `rounds` times the number of secondaries is next."""
    least_health: int = 5
    """Percent; the floor below which no replica's weight falls."""
    alert_after: int = 3
    """Timeouts in a row at `most_ms` until somebody should look."""


@dataclass(frozen=True, slots=True)
class Terms:
    """A lease as it is appended to the log. `reported_ms` is the holder's own clock, known to precede the issue."""

    holder: ProcessId
    boot: int
    reported_ms: int
    budget_ms: int
    """Of the holder's clock, from `reported_ms`."""
    ttl_ms: int
    """Of the primary's clock, from when it is chosen or inherited."""

    @property
    def until_ms(self) -> int:
        """When the holder must have stopped, on its clock of that boot."""
        return self.reported_ms + self.budget_ms


@dataclass(frozen=True, slots=True)
class Lease:
    """A chosen lease. `token` is its index in the log: unique and increasing."""

    token: int
    terms: Terms


@dataclass(frozen=True, slots=True)
class Watched:
    """A lease that somebody else has, as its observer knows it. `since_ms`: when he learnt of `token`, by his own clock.

    It is over when its whole time has passed on that clock. Late is safe: its holder's time began before. Clocks are read in whole
    milliseconds, so that `ttl_ms` between two readings may be almost one less: the deadline is passed, not reached.
    """

    token: int
    ttl_ms: int
    since_ms: int

    @property
    def deadline_ms(self) -> int:
        """It is over when this is passed."""
        return self.since_ms + self.ttl_ms

    def is_over(self, local_ms: int) -> bool:
        """Whether it is, `local_ms` being now."""
        return local_ms > self.deadline_ms


@dataclass(frozen=True, slots=True)
class Turn:
    """Leases to others since this replica had one, and how long its last one was (0: it had none)."""

    since: int = 0
    ttl_ms: int = 0


Turns = Mapping[ProcessId, Turn]
"""Everybody's turn. Part of the replicated state: a new primary goes on where the old one was."""


def turns_after(turns: Turns, terms: Terms) -> dict[ProcessId, Turn]:
    """The turns when this lease has been executed."""
    passed = {member: Turn(turn.since + 1, turn.ttl_ms) for member, turn in turns.items()}
    return {**passed, terms.holder: Turn(0, terms.ttl_ms)}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a replica publishes, and what another one may start from: state after `applied` entries."""

    token: int = 0
    applied: int = 0
    turns: Turns | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica's heartbeat tells. `health` in percent, `payload` as the replica recorded it."""

    node: ProcessId
    boot: int
    clock_ms: int
    payload: int
    health: int = 100


class Admission(Enum):
    """What the store of checkpoints does with one."""

    ACCEPTED = "newer than any other: published"
    REPEATED = "this very one is published: nothing changes"
    FENCED = "a newer one is published: its writer's lease is long over"


def admission(newest: int, token: int) -> Admission:
    """The store's rule. `newest`: the token of the last published checkpoint, 0 for none. Compare and write at once."""
    if token == newest:
        return Admission.REPEATED
    return Admission.ACCEPTED if token > newest else Admission.FENCED


# ---- events of a replica -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EntryExecuted(Event):
    """The log's entry `index`, from 1, was executed here; `terms` if it is a lease."""

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
    """The work is done, all of it is uploaded and not visible."""

    token: int
    local_ms: int


@dataclass(frozen=True, slots=True)
class CheckpointFailed(Event):
    """The work cannot be done."""

    token: int


@dataclass(frozen=True, slots=True)
class PublishAnswered(Event):
    """The store of checkpoints has compared."""

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
    """It is not any more."""


# ---- effects of a replica ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeCheckpoint(Effect):
    """Begin when convenient (`CheckpointStarted`). While it is being taken no entry is executed; voting goes on."""

    token: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint(Effect):
    """Do not begin, or stop working and delete what was uploaded."""

    token: int


@dataclass(frozen=True, slots=True)
class PublishCheckpoint(Effect):
    """Make it visible if the store admits its token."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class RecordPayload(Effect):
    """Make the payload of heartbeats durable, before anything else is sent."""

    payload: int


# ---- the primary -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HealthReported(Event):
    """A heartbeat came in; `local_ms` is the primary's clock."""

    report: Report
    local_ms: int


@dataclass(frozen=True, slots=True)
class Ticked(Event):
    """Time to look whether somebody may have a lease. `draw`: a random number in [0, 2**32)."""

    local_ms: int
    draw: int


@dataclass(frozen=True, slots=True)
class LeaseChosen(Event):
    """The primary has executed its own lease from the log."""

    lease: Lease
    local_ms: int


@dataclass(frozen=True, slots=True)
class LeaseReturned(Event):
    """Its holder will not use the lease any more: it has said so, or its life is known to be over. Nothing was published."""

    token: int


@dataclass(frozen=True, slots=True)
class AppendLease(Effect):
    """Append it to the log. If nobody knows whether it was chosen, the primary waits until it is known."""

    terms: Terms
