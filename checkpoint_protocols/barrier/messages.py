"""Events and effects of aligned barriers with two-phase-commit sinks.

Seeds 001 (Wallaroo) and 003 (asynchronous barrier snapshots, Algorithm 1), with what they leave out: every
message of a run carries its incarnation, an epoch needs all tasks *and* all sinks, and a source's barrier
arrives on `NIL`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation, SinkId, TaskId, TimerId
from checkpoint_protocols.machine import Effect, Event

NIL = ChannelId("")
"""The input on which the coordinator injects barriers at a task that has no other input."""


class Reason(StrEnum):
    """Why an epoch is taken. The last two are final: no epoch follows them in this incarnation."""

    INITIAL = "initial"
    INTERVAL = "interval"
    SAVEPOINT = "savepoint"
    STOP = "stop"
    DRAINED = "drained"

    @property
    def final(self) -> bool:
        """Whether the run ends behind this epoch."""
        return self in (Reason.STOP, Reason.DRAINED)


class Outcome(Enum):
    """How an incarnation ended."""

    STOPPED = "stopped"
    FAILED = "failed"
    FENCED = "fenced"


# ---- to the coordinator ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The host has recovered (state restored, sources rewound) and is ready to carry out effects."""


@dataclass(frozen=True, slots=True)
class IntervalElapsed(Event):
    """The time between two epochs has passed."""

    timer: TimerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class TimeoutElapsed(Event):
    """What the coordinator waits for has not come within its bound."""

    timer: TimerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class PauseElapsed(Event):
    """The pause after an aborted epoch has passed."""

    timer: TimerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class RetryElapsed(Event):
    """The pause before another attempt to publish at `sink` has passed."""

    sink: SinkId
    timer: TimerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class EpochRequested(Event):
    """Somebody wants an epoch; `name` is the savepoint's. The next barrier serves all that wait."""

    reason: Reason
    name: str | None = None


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """End the run behind a final epoch. `reason` is STOP, or DRAINED when the sources reached their ends."""

    reason: Reason = Reason.STOP


@dataclass(frozen=True, slots=True)
class SnapshotAcked(Event):
    """The task's snapshot of the epoch is durable (not merely taken)."""

    task: TaskId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class SinkPrepared(Event):
    """All rows of the epoch are durably staged: the sink can publish them whatever happens."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class SinkRefused(Event):
    """The sink cannot prepare the epoch: a participant's no in two-phase commit. Spark's host never sends it."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation
    why: str = ""


@dataclass(frozen=True, slots=True)
class EpochStored(Event):
    """The decision record is in the log."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class EpochStoreFailed(Event):
    """The log has a newer incarnation: the decision record is not in it and never will be. An unknown outcome is not reported."""

    epoch: Epoch
    incarnation: Incarnation
    why: str = ""


@dataclass(frozen=True, slots=True)
class SinkCommitted(Event):
    """The sink has published the epoch, now or earlier."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class SinkCommitFailed(Event):
    """The sink could not publish the epoch; it stays staged. `retriable`: another attempt may succeed."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation
    retriable: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Fenced(Event):
    """The log, or a participant, knows a newer incarnation: `incarnation`; one without a number, if that is the receiver's own.

    `why`: in the words of who was asked.
    """

    incarnation: Incarnation
    why: str = ""


# ---- from the coordinator ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InjectBarrier(Effect):
    """Let the barrier enter at every source."""

    epoch: Epoch
    incarnation: Incarnation
    reason: Reason


@dataclass(frozen=True, slots=True)
class StoreEpoch(Effect):
    """Write the decision record (the manifest) durably. `names`: savepoints that this epoch serves."""

    epoch: Epoch
    incarnation: Incarnation
    reason: Reason
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitSink(Effect):
    """Publish a decided epoch at one sink, again if need be. `incarnation` is the publisher's."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class AbortEpoch(Effect):
    """The epoch will never be decided: release alignments, keep snapshots and rows for the next epoch."""

    epoch: Epoch
    incarnation: Incarnation
    why: str


@dataclass(frozen=True, slots=True)
class Finish(Effect):
    """End the incarnation. No effect follows. `unpublished`: decided epochs that the next start redoes."""

    outcome: Outcome
    why: str = ""
    unpublished: tuple[tuple[SinkId, Epoch], ...] = ()


# ---- to and from a task ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BarrierArrived(Event):
    """The barrier is the next thing on the channel. At a source, `channel` is `NIL`."""

    channel: ChannelId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class RowsArrived(Event):
    """A segment of rows is the next thing on the channel; `segment` is the host's name for it."""

    channel: ChannelId
    incarnation: Incarnation
    segment: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotStored(Event):
    """The snapshot captured for the epoch is durable."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class EpochAborted(Event):
    """The coordinator gave the epoch up: it will never be decided."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Restored(Event):
    """The task's state is that of `epoch`, in incarnation `incarnation`; nothing older reaches it unmarked."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class CaptureSnapshot(Effect):
    """Fix the state as it is now, between the effects before and after; write it; answer `SnapshotStored`."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class ForwardBarrier(Effect):
    """Put the barrier on every output, behind all rows sent so far and before any other."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class AckSnapshot(Effect):
    """Tell the coordinator `SnapshotAcked`."""

    task: TaskId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class RestoreTask(Effect):
    """A newer incarnation exists: load its base epoch, deliver nothing meanwhile, answer `Restored`."""

    incarnation: Incarnation


# ---- to and from a sink ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagedUpTo(Event):
    """The epoch's barrier has reached the sink on all its inputs: it has every row before it."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Prepared(Event):
    """The rows of the epoch are durable under a transaction id that later incarnations can find."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class PrepareFailed(Event):
    """The rows of the epoch could not be made durable; they are still at hand."""

    epoch: Epoch
    incarnation: Incarnation
    why: str = ""


@dataclass(frozen=True, slots=True)
class EpochDecided(Event):
    """The decision record of the epoch exists. `incarnation` is the messenger's."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class DoubtResolved(Event):
    """The log's answer for a transaction of an earlier incarnation: whether a decision record names it."""

    epoch: Epoch
    prepared_in: Incarnation
    incarnation: Incarnation
    decided: bool


@dataclass(frozen=True, slots=True)
class Published(Event):
    """The epoch's rows are visible, now or since an earlier attempt."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class PublishRefused(Event):
    """The epoch's rows could not be made visible; whether some are, the next attempt has to find out."""

    epoch: Epoch
    incarnation: Incarnation
    retriable: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class AskDecision(Effect):
    """Look for a decision record of (`epoch`, `prepared_in`) in the fenced log; answer `DoubtResolved`."""

    sink: SinkId
    epoch: Epoch
    prepared_in: Incarnation
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class PrepareSink(Effect):
    """Make all rows up to the epoch's barrier that no earlier epoch took durable; answer `Prepared`."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class CarryOver(Effect):
    """The epoch was aborted in this incarnation: its staged rows go to the front of the next epoch's."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class DiscardPrepared(Effect):
    """The epoch of an earlier incarnation was never decided: its rows come again, remove the staged ones."""

    sink: SinkId
    epoch: Epoch
    prepared_in: Incarnation
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class PublishEpoch(Effect):
    """Make the epoch's rows visible exactly once; answer `Published` or `PublishRefused`."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class VoteYes(Effect):
    """Tell the coordinator `SinkPrepared`."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class VoteNo(Effect):
    """Tell the coordinator `SinkRefused`."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation
    why: str = ""


@dataclass(frozen=True, slots=True)
class AckPublished(Effect):
    """Tell the coordinator `SinkCommitted`."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class ReportPublishFailure(Effect):
    """Tell the coordinator `SinkCommitFailed`."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation
    retriable: bool
    why: str
