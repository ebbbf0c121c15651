"""Events and effects of the epoch protocol.

The host sends the events and carries out the effects. To commit an epoch is to append its manifest to the log; to
publish it is to make its rows visible in a sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from pydantic import JsonValue

from checkpoint_protocols.ids import SinkId, TimerId
from checkpoint_protocols.machine import Effect, Event
from spark_ckpt.connector import Cursor, EpochOutput, StagedEarly
from spark_ckpt.coordination.markers import ControlMarker
from spark_ckpt.coordination.reports import Report
from spark_ckpt.epochs.identity import Parts
from spark_ckpt.epochs.records import Manifest, SinkAck
from spark_ckpt.errors import CkptError


class Reason(StrEnum):
    """Reason of an epoch. The last two are final: no epoch follows them in this incarnation."""

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


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourcesPinned(Event):
    """Start positions of sources without a cursor, by name. Comes first and once; the positions become an epoch of
    their own.
    """

    starts: Mapping[str, Cursor]


@dataclass(frozen=True, slots=True)
class QueryStarting(Event):
    """The query is about to plan its first batch. `behind`: rows wait at the sources."""

    behind: bool


@dataclass(frozen=True, slots=True)
class BatchDone(Event):
    """A micro-batch ended: all its writes are durable, and its end offsets were fixed before it ran.

    `cursors`: position of every source at its end. `watermark_ms`: the batch's watermark in Spark's offset log.
    `markers`: number of control markers up to its end. `drained`: every source has been read up to its target.
    `taken`: per edge, the number of segments consumed by its end. They count from the first one in flight when the
    query started.
    """

    batch: int
    cursors: Mapping[str, Cursor]
    watermark_ms: int
    markers: int
    reports: tuple[Report, ...]
    duration_ms: int = 0
    drained: bool = False
    taken: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EpochCommitted(Event):
    """The manifest is in the log: the epoch is committed."""

    manifest: Manifest
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitFenced(Event):
    """The log has a newer incarnation: the epoch is not committed and never will be."""

    epoch: int
    why: str


@dataclass(frozen=True, slots=True)
class CommitOverdue(Event):
    """The log did not answer within `store_timeout_ms`: the epoch may be committed, or become so later."""

    epoch: int


@dataclass(frozen=True, slots=True)
class PublishEnded(Event):
    """Result of one attempt to publish.

    `rows`: number of published rows. `replayed`: the sink already had the epoch. `newest`: if replayed, the newest
    incarnation in the log, read after the sink's answer. `error`: why the attempt failed. `learned`: the sink's
    endpoint, if it was not fully known. `back`: the epoch to restore, from `epochs.ways_back`, for an error about
    damaged rows, a conflicting marker or another endpoint. None for other errors, and if the log could not be read.
    """

    sink: str
    epoch: int
    rows: int = 0
    replayed: bool = False
    newest: int = 0
    error: CkptError | None = None
    learned: Parts | None = None
    back: int | None = None


@dataclass(frozen=True, slots=True)
class EarlySendEnded(Event):
    """Answer to `SendEarly`: the number of rows sent, or an error. The staged files exist in both cases."""

    sink: str
    epoch: int
    rows: int = 0
    error: CkptError | None = None


@dataclass(frozen=True, slots=True)
class AcksRecorded(Event):
    """Answer to `RecordAcks`: the log has the acknowledgements, or refused them with `error`."""

    acks: tuple[SinkAck, ...]
    error: CkptError | None = None


@dataclass(frozen=True, slots=True)
class IntervalElapsed(Event):
    """The time between two epochs has passed."""

    timer: TimerId


@dataclass(frozen=True, slots=True)
class TimeoutElapsed(Event):
    """The current wait exceeded its bound: for the barrier's batch, for the log, or for the last publishes."""

    timer: TimerId


@dataclass(frozen=True, slots=True)
class PauseElapsed(Event):
    """The pause after an aborted epoch has passed."""

    timer: TimerId


@dataclass(frozen=True, slots=True)
class RetryElapsed(Event):
    """The pause before the next attempt to publish at `sink` has passed."""

    sink: SinkId
    timer: TimerId


@dataclass(frozen=True, slots=True)
class AcksDue(Event):
    """Acknowledgements have waited for an epoch that carries them into the log."""


@dataclass(frozen=True, slots=True)
class StandbyWaits(Event):
    """A standby waits for the end of this driver, or none does any more."""

    waits: bool


@dataclass(frozen=True, slots=True)
class EpochsReleased(Event):
    """Sinks may publish epochs up to `epoch`: the line of this epoch is decided."""

    epoch: int


@dataclass(frozen=True, slots=True)
class EpochRequested(Event):
    """A caller requests an epoch; `name` is the savepoint's. The next barrier serves all waiting requests."""

    reason: Reason
    name: str | None = None


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """End the run after a final epoch. `reason` is STOP, or DRAINED if the sources reached their ends."""

    reason: Reason = Reason.STOP


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OfferMarker(Effect):
    """Append the marker to the control stream."""

    marker: ControlMarker


@dataclass(frozen=True, slots=True)
class CommitEpoch(Effect):
    """Append the manifest to the log, with the id of a new attempt and the time.

    Answered by `EpochCommitted`, `CommitFenced` or `CommitOverdue`. If the outcome is unknown the incarnation
    ends, and the next one reads the log. `names`: savepoints that this epoch serves. `batch`: the micro-batch that
    ended the epoch, whose state of Spark's own operators belongs to it; None for an epoch before the first batch.
    """

    manifest: Manifest
    names: tuple[str, ...] = ()
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class NameEpoch(Effect):
    """Keep a committed epoch under a savepoint's name. If the name was taken meanwhile, the job continues."""

    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Publish(Effect):
    """Try once to publish a committed epoch, after earlier requests to the sink. Answered by `PublishEnded`."""

    sink: str
    output: EpochOutput


@dataclass(frozen=True, slots=True)
class SendEarly(Effect):
    """Early send: send a sink the rows of an uncommitted epoch that it lacks, after earlier requests to the sink.

    Nothing waits for it. Answered by `EarlySendEnded`.
    """

    sink: str
    staged: StagedEarly


@dataclass(frozen=True, slots=True)
class DropEarlySend(Effect):
    """Roll back early sends of an aborted epoch. Not answered."""

    sink: str


@dataclass(frozen=True, slots=True)
class RecordAcks(Effect):
    """Append acknowledgements to the log without an epoch. Answered by `AcksRecorded`."""

    acks: tuple[SinkAck, ...]


@dataclass(frozen=True, slots=True)
class MaterializeTables(Effect):
    """Update the readers' tables to a committed epoch, then apply retention. Not urgent.

    `consumed_segments`: per edge, paths of consumed segments that no committed epoch names.
    """

    manifest: Manifest
    consumed_segments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArmTimer(Effect):
    """Answer with `elapsed` after `delay_ms`. Timers are not cancelled: an older number is stale."""

    delay_ms: int
    elapsed: Event


@dataclass(frozen=True, slots=True)
class End(Effect):
    """The incarnation is over. `error`: the reason; None after a stop with everything published."""

    outcome: Outcome
    error: CkptError | None


@dataclass(frozen=True, slots=True)
class CountBatch(Effect):
    """A batch was counted. `epoch`: the newest committed one. `in_flight`: rows by edge. `late`: late rows by
    operator.
    """

    batch: int
    epoch: int
    counts: Mapping[str, int]
    duration_ms: int
    cursors: Mapping[str, Cursor]
    in_flight: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SayCommitted(Effect):
    """Announce that the epoch is committed."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class SayAborted(Effect):
    """The epoch will never be committed: announce it, keep its snapshots and rows for the next epoch."""

    epoch: int
    why: str


@dataclass(frozen=True, slots=True)
class SayPublished(Effect):
    """Announce that a sink has published the epoch."""

    epoch: int
    detail: Mapping[str, JsonValue]
