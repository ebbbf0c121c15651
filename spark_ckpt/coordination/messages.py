"""What the host core of an incarnation is told (events) and what it asks for (effects)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from checkpoint_protocols.barrier import Outcome
from checkpoint_protocols.machine import Effect, Event
from spark_ckpt.connector import Cursor, EpochOutput, StagedAhead
from spark_ckpt.coordination.markers import ControlMarker
from spark_ckpt.coordination.reports import Report
from spark_ckpt.errors import CkptError
from spark_ckpt.store.identity import Parts
from spark_ckpt.store.records import Manifest, SinkAck

# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourcesPinned(Event):
    """Where sources without a cursor start, by name. Comes first, once; the position is an epoch of its own."""

    starts: Mapping[str, Cursor]


@dataclass(frozen=True, slots=True)
class QueryStarting(Event):
    """The query is about to plan its first batch. `behind`: rows wait at the sources."""

    behind: bool


@dataclass(frozen=True, slots=True)
class BatchDone(Event):
    """A micro-batch is over: everything it wrote is durable, and where it ends was fixed before it ran.

    `cursors`: where every source stands at its end. `markers`: how many control markers there were up to its end.
    `watermark_ms`: what Spark's offset log says of the batch. `drained`: every source has been read up to its target.
    `taken`: how many segments of each edge had been consumed at its end, from the first one in flight when the query began.
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
class ManifestStored(Event):
    """The manifest is in the log: the epoch is decided."""

    manifest: Manifest
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ManifestFenced(Event):
    """The log has a newer incarnation: the epoch is not decided and never will be."""

    epoch: int
    why: str


@dataclass(frozen=True, slots=True)
class ManifestOverdue(Event):
    """The log has not answered within `store_timeout_ms`: whether the epoch is decided is not known, and may yet come about."""

    epoch: int


@dataclass(frozen=True, slots=True)
class PublishEnded(Event):
    """What became of one attempt to publish: rows and whether the sink had them before, or an error.

    `learned`: the sink's identity, if it was not known whole before. `back`, `on`: of an error about damaged
    rows or a marker in their way, see `store.ways_back`; None if it is another error, or if the log could not be asked.
    `newest`: if the sink had the rows before, the newest incarnation that the log names after the sink has answered.
    """

    sink: str
    epoch: int
    rows: int = 0
    replayed: bool = False
    newest: int = 0
    error: CkptError | None = None
    learned: Parts | None = None
    back: int | None = None
    on: int | None = None


@dataclass(frozen=True, slots=True)
class AheadEnded(Event):
    """The answer to `SendAhead`: how many rows were sent, or an error. The staged files are there in any case."""

    sink: str
    epoch: int
    rows: int = 0
    error: CkptError | None = None


@dataclass(frozen=True, slots=True)
class AcksRecorded(Event):
    """The answer to `RecordAcks`: the log has them, or the error with which it did not take them."""

    acks: tuple[SinkAck, ...]
    error: CkptError | None = None


@dataclass(frozen=True, slots=True)
class StopAsked(Event):
    """Somebody wants a final epoch and the end."""


@dataclass(frozen=True, slots=True)
class SavepointAsked(Event):
    """Somebody wants an epoch that is kept under `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class TimerRanOut(Event):
    """What `ArmTimer` asked for."""

    elapsed: Event


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OfferMarker(Effect):
    """Put the marker into the control stream, behind those before it."""

    marker: ControlMarker


@dataclass(frozen=True, slots=True)
class StoreManifest(Effect):
    """Append the manifest to the log, with a new attempt's id and the time: the decision.

    Answered by `ManifestStored`, `ManifestFenced` or `ManifestOverdue`. If the outcome is unknown the incarnation ends: the
    next one reads the log. `names`: savepoints that this epoch serves.
    """

    manifest: Manifest
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NameEpoch(Effect):
    """Keep a decided epoch under a savepoint's name; a name that is taken meanwhile ends nothing."""

    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Publish(Effect):
    """Try once to publish a decided epoch, behind what was asked of the sink before. Answered by `PublishEnded`."""

    sink: str
    output: EpochOutput


@dataclass(frozen=True, slots=True)
class SendAhead(Effect):
    """Send a sink what it was not sent yet of an epoch that is not decided, behind what was asked of the sink before.

    Nobody waits for it. Answered by `AheadEnded`.
    """

    sink: str
    staged: StagedAhead


@dataclass(frozen=True, slots=True)
class DropAhead(Effect):
    """The epoch that the sink was sent rows of is given up: have them undone. Not answered."""

    sink: str


@dataclass(frozen=True, slots=True)
class RecordAcks(Effect):
    """Append acknowledgements to the log without an epoch. Answered by `AcksRecorded`."""

    acks: tuple[SinkAck, ...]


@dataclass(frozen=True, slots=True)
class MaterializeTables(Effect):
    """Redo for readers of the tables what a decided epoch says; then retention. No hurry.

    `spent`: per edge, paths of segments that were consumed before the epoch's cut and that no epoch names.
    """

    manifest: Manifest
    spent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArmTimer(Effect):
    """Answer with `TimerRanOut(elapsed)` after `delay_ms`."""

    delay_ms: int
    elapsed: Event


@dataclass(frozen=True, slots=True)
class End(Effect):
    """The incarnation is over. `error`: why, if not by a stop to which nothing is missing."""

    outcome: Outcome
    error: CkptError | None


@dataclass(frozen=True, slots=True)
class CountBatch(Effect):
    """A batch has been taken in. `epoch`: the newest committed one. `in_flight`: rows on every edge. `late`: by operator."""

    batch: int
    epoch: int
    counts: Mapping[str, int]
    duration_ms: int
    cursors: Mapping[str, Cursor]
    in_flight: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SayCommitted(Effect):
    """Tell whoever listens that the epoch is decided."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class SayAborted(Effect):
    """Tell whoever listens that the epoch will not be decided."""

    epoch: int
    why: str


@dataclass(frozen=True, slots=True)
class SayPublished(Effect):
    """Tell whoever listens that a sink has the epoch."""

    epoch: int
    detail: Mapping[str, JsonValue]
