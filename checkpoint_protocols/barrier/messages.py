"""Events and effects of aligned barriers with two-phase-commit sinks.

Seeds 001 (Wallaroo) and 003 (asynchronous barrier snapshots, Algorithm 1), with three additions. Every message of a run
carries its incarnation. An epoch needs all tasks *and* all sinks. A source's barrier arrives on `NIL`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation, SinkId, TaskId, TimerId
from checkpoint_protocols.machine import Effect, Event

NIL = ChannelId("")
"""Input for the coordinator's barriers at a task without other inputs."""


class Reason(StrEnum):
    """Reason of an epoch. The last two are final: no epoch follows them in this incarnation."""

    INITIAL = "initial"
    INTERVAL = "interval"
    SAVEPOINT = "savepoint"
    STOP = "stop"
    DRAINED = "drained"

    @property
    def final(self) -> bool:
        """True if the run ends after this epoch."""
        return self in (Reason.STOP, Reason.DRAINED)


class Outcome(Enum):
    """Result of an incarnation at its end."""

    STOPPED = "stopped"
    FAILED = "failed"
    FENCED = "fenced"


# ---- to the coordinator ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The host has recovered (state restored, sources rewound) and can carry out effects."""


@dataclass(frozen=True, slots=True)
class IntervalElapsed(Event):
    """The time between two epochs has passed."""

    timer: TimerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class TimeoutElapsed(Event):
    """The coordinator's current wait exceeded its bound."""

    timer: TimerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class PauseElapsed(Event):
    """The pause after an aborted epoch has passed."""

    timer: TimerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class RetryElapsed(Event):
    """The pause before the next attempt to publish at `sink` has passed."""

    sink: SinkId
    timer: TimerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class EpochRequested(Event):
    """A caller requests an epoch; `name` is the savepoint's. The next barrier serves all waiting requests."""

    reason: Reason
    name: str | None = None


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """End the run after a final epoch. `reason` is STOP, or DRAINED if the sources reached their ends."""

    reason: Reason = Reason.STOP


@dataclass(frozen=True, slots=True)
class SnapshotAcked(Event):
    """The task's snapshot of the epoch is durable (not merely taken)."""

    task: TaskId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class SinkPrepared(Event):
    """All rows of the epoch are durably staged: the sink can publish them after any failure."""

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
    """The decision record is in the log: the epoch is committed."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class EpochStoreFailed(Event):
    """The log has a newer incarnation: the decision record is not in it and never will be.

    The host does not report an unknown outcome.
    """

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
    """The sink could not publish the epoch; its rows stay staged. `retriable`: another attempt may succeed."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation
    retriable: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Fenced(Event):
    """The log, or a participant, knows a newer incarnation.

    `incarnation` is the newer one, or the receiver's own if the number is unknown. `why` is the text of the component
    that detected it.
    """

    incarnation: Incarnation
    why: str = ""


# ---- from the coordinator ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InjectBarrier(Effect):
    """Put the barrier into the stream at every source."""

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
    """Publish a committed epoch at one sink, again if needed. `incarnation` is the publisher's."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class AbortEpoch(Effect):
    """The epoch will never be committed: release alignments, keep snapshots and rows for the next epoch."""

    epoch: Epoch
    incarnation: Incarnation
    why: str


@dataclass(frozen=True, slots=True)
class Finish(Effect):
    """End the incarnation. No effect follows. `unpublished`: committed epochs that the next start publishes."""

    outcome: Outcome
    why: str = ""
    unpublished: tuple[tuple[SinkId, Epoch], ...] = ()


# ---- to and from a task ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BarrierArrived(Event):
    """The barrier is next on the channel. At a source, `channel` is `NIL`."""

    channel: ChannelId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class RowsArrived(Event):
    """A segment of rows is next on the channel; `segment` is the host's name for it."""

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
    """The coordinator aborted the epoch: it will never be committed."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Restored(Event):
    """The task's state is that of `epoch`, in incarnation `incarnation`; no older message reaches it unmarked."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class CaptureSnapshot(Effect):
    """Fix the current state, between the effects before and after; write it; answer `SnapshotStored`."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class ForwardBarrier(Effect):
    """Put the barrier on every output, after all rows sent so far and before any other."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class AckSnapshot(Effect):
    """Send `SnapshotAcked` to the coordinator."""

    task: TaskId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class RestoreTask(Effect):
    """A newer incarnation exists: load its base epoch, deliver nothing until then, answer `Restored`."""

    incarnation: Incarnation


# ---- to and from a sink ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagedUpTo(Event):
    """The epoch's barrier has reached the sink on all its inputs: the sink has every row before it."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Prepared(Event):
    """The rows of the epoch are durable under a transaction id that later incarnations can find."""

    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class PrepareFailed(Event):
    """The rows of the epoch could not be made durable; the sink still has them."""

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
    """The log's answer for a transaction of an earlier incarnation. `decided`: a decision record names it."""

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
    """The epoch's rows could not be published. Some may be visible; the next attempt has to find out."""

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
    """Make all rows up to the epoch's barrier durable that no earlier epoch includes; answer `Prepared`."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class CarryOver(Effect):
    """The epoch was aborted in this incarnation: its staged rows become the first rows of the next epoch."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class DiscardPrepared(Effect):
    """The epoch of an earlier incarnation was never committed: remove its staged rows, since the sources produce them again."""

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
    """Send `SinkPrepared` to the coordinator."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class VoteNo(Effect):
    """Send `SinkRefused` to the coordinator."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation
    why: str = ""


@dataclass(frozen=True, slots=True)
class AckPublished(Effect):
    """Send `SinkCommitted` to the coordinator."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class ReportPublishFailure(Effect):
    """Send `SinkCommitFailed` to the coordinator."""

    sink: SinkId
    epoch: Epoch
    incarnation: Incarnation
    retriable: bool
    why: str
