"""What a connector implements: a source with cursors, a sink with staged rows and an idempotent publish.

A connector package imports this module, `spark_ckpt.errors` and `checkpoint_protocols.ids`, `spark_ckpt.jars` if
it brings jars, `spark_ckpt.connector_parts` if they fit, and in its tests `spark_ckpt.testing`. The core never imports a
connector: it finds `Connector` objects by their entry points (`spark_ckpt.connectors`).

Source: `start` pins a position once, `read` streams the rows right after a cursor, `cursor` translates one line of
Spark's offset log.  Sink (two-phase commit): rows are *staged* by tasks while the epoch runs (prepared), the commit
of the epoch's manifest is the decision, and `Publisher.publish` is idempotent redo after it (committed).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from checkpoint_protocols.ids import Epoch, Incarnation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_ckpt.errors import CkptError
    from spark_ckpt.jars import Choice

CONTRACT = 1
"""Number of what this module asks of a connector and gives it. It grows when an older core cannot host a newer connector."""

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
Cursor = Mapping[str, Json]
"""A source's position, JSON-serialisable: everything before it is in the epoch, everything after it is not."""


@dataclass(frozen=True, slots=True)
class Connector:
    """What a connector's package says of itself: `CONNECTOR` in the module that its entry point names.

    `name`: the entry point's, as in `spark_ckpt.session("x", name)`. `contract`: the `CONTRACT` that it was written for,
    as a number. `sources`, `sinks`: names of classes in that module, so that it may import them when they are asked for.
    `jars`: what a session needs on its class path, every artefact locked (`spark_ckpt.jars.read_lock`).
    `settings`: what a session needs to be told; a user's own settings win. `published`: as `TellsPublished.newest_published`, but
    from the identity that a log keeps of a sink and from storage options: commands have no sink object. Raises `SinkInvalid`.
    """

    name: str
    contract: int
    sources: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    jars: tuple[Choice, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    published: Callable[[Mapping[str, str], SinkContext, Mapping[str, str]], Published | None] | None = None


@runtime_checkable
class Source(Protocol):
    """A replayable input: reading from a cursor yields the same rows in the same order every time."""

    def check(self, spark: SparkSession) -> None:
        """Raise `SourceInvalid` (or another `CkptError`) now for whatever would fail later."""

    def start(self, spark: SparkSession) -> Cursor:
        """Resolve the configured start (earliest, latest, ...) to a cursor. Called once in a job's life."""

    def read(self, spark: SparkSession, cursor: Cursor) -> DataFrame:
        """A streaming DataFrame of the rows after `cursor`. The schema is the same on every call."""

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        """The cursor for one source's line of Spark's offset log (`offsets/N`): where that batch ended.

        `previous` is where the batch before it ended, for the first one the cursor that was read from.
        """

    def end(self, spark: SparkSession) -> Cursor:
        """The position of everything that is readable now (read_committed where that exists)."""

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        """Whether everything up to `end` lies before `cursor`."""

    def describe(self) -> Mapping[str, str]:
        """What a report may show: kind, topic or path. Never a secret."""


@runtime_checkable
class Identified(Protocol):
    """A source or sink that can say which table, topic or folder it is: a job then notices when it is another one."""

    def identity(self, spark: SparkSession) -> Mapping[str, str]:
        """What tells it from every other, part by part, the same at every start: kind, cluster, table id, ... No secret.

        A part that is not known yet is empty and asked for again after a publish: the id of a table that a sink
        will create. Part "path" is a place: it may change if the thing was moved, the other parts say what it is.
        A job refuses a recorded part that is missing or another one; new parts are recorded as they come. Called after
        `check`, and may use what that has found. Raises as `check` does.

        Of a source, the driver asks at each start, before it commits an epoch, and every few seconds, on threads of its own. Each
        call asks the system again and keeps no earlier answer: an epoch whose rows come from another topic is not committed.
        So it is one cheap request; `KeepsConnection` saves the connecting.
        """


@runtime_checkable
class KeepsConnection(Protocol):
    """A source that keeps the connection open over which `identity` asks."""

    def disconnect(self) -> None:
        """Close it; a later call opens it again. Called when an incarnation has ended."""


@runtime_checkable
class KeepsUnchanged(Protocol):
    """A source of several parts, topics for example: if one is another one, the job goes on with the rest where it is."""

    def renewed(self, spark: SparkSession, cursor: Cursor, changed: Collection[str]) -> Cursor:
        """The cursor of a source that is confirmed to be another one: what did not change at `cursor`, the rest at its start.

        `changed`: names of the parts of `Identified.identity` that differ from those that belong to `cursor`.
        """


@runtime_checkable
class LimitsBatches(Protocol):
    """A source whose stream obeys a limit of rows per batch (Spark's admission control, `ReadMaxRows`)."""

    @property
    def rows_per_batch(self) -> int | None:
        """The configured limit; None if a batch takes all there is."""

    def limited(self, rows: int) -> Source | None:
        """The same source in batches of at most `rows`; None if its own are no larger or have other bounds.

        Where Spark divides the limit, a batch may have up to one row more for each partition.
        """


@runtime_checkable
class CountsLag(Protocol):
    """A source that can say how many rows lie between two positions."""

    def lag(self, cursor: Cursor, end: Cursor) -> int:
        """Rows behind `cursor` and before `end`; at least 0."""


@runtime_checkable
class ShowsCursor(Protocol):
    """A source that shows others how far a job has read, where they look for it. For display: the job never reads it back."""

    @property
    def shown_as(self) -> str | None:
        """Under which name; None if it is not to show anything."""

    def show(self, cursor: Cursor) -> None:
        """Where the job stands in an epoch that is decided, maybe an older one than was shown before.

        Called on a thread of its own. Raises `SourceInvalid`, which is logged and ends nothing.
        """


@dataclass(frozen=True, slots=True)
class Seed:
    """What a fresh Spark checkpoint holds so that one source of Spark's own begins at a cut.

    `offset`: the source's line in Spark's offset log. `files`: texts in the source's own folder of the checkpoint, by name.
    """

    offset: str
    files: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class BeginsAtSeed(Protocol):
    """A source whose stream begins where Spark's checkpoint says: `read` cannot tell it."""

    def seed(self, cursor: Cursor) -> Seed | None:
        """What makes a fresh checkpoint's stream begin at `cursor`; None at a beginning that the stream finds by itself."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """Where a plain query's source stood, as a cursor. `identity`: what its offset tells of it, as `Identified.identity`
    names the parts, empty where the offset does not say."""

    cursor: Cursor
    identity: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Adopts(Protocol):
    """A source that can go on where a plain query stopped which read the same input with Spark's own reader."""

    @classmethod
    def adopted(cls, offset: str) -> Adopted:
        """The cursor right behind what a query has read up to `offset`, a line of Spark's offset log.

        Raises `SourceInvalid` for an offset that is none of that reader, or that no cursor can say.
        """


class Folder(Protocol):
    """A folder of the store that belongs to one source."""

    @property
    def uri(self) -> str:
        """Where it is."""

    def read_bytes(self, path: str) -> bytes:
        """The whole file. FileNotFoundError if there is none."""

    def write_bytes(self, path: str, data: bytes) -> None:
        """Create or replace a file; durable when it returns."""

    def entries(self) -> list[str]:
        """Names of what is in the folder."""

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files; those that are gone already do not matter."""


@runtime_checkable
class Remembers(Protocol):
    """A source that keeps what it has consumed outside of its cursors, or that removes input nobody needs."""

    def remember_in(self, folder: Folder) -> None:
        """Where to keep it. Called before `start`, `read` and `cursor` of a run."""

    def check_cursor(self, cursor: Cursor | None, newest: Cursor) -> None:
        """Raise `SourceInvalid` if rows between `cursor` (None: the configured start) and `newest` cannot be read again."""

    def release(self, kept: Sequence[Cursor]) -> None:
        """The job can go back to `kept` cursors and to no other; everything before all of them is published."""


@runtime_checkable
class ChecksMemory(Protocol):
    """A source that `Remembers`, and whose folder in the store can be checked without the program of the job.

    It is found by part "kind" of its identity, which is then the name of its connector.
    """

    @classmethod
    def memory_damage(cls, folder: Folder, cursors: Sequence[Cursor]) -> Sequence[CkptError | None]:
        """For each cursor the error that a start from it raises because of the folder, None if it raises none.

        Reads every file that such a start reads, each once, and changes nothing.
        """


@runtime_checkable
class MayNeverEnd(Protocol):
    """A source that may be unable to say where it ends."""

    @property
    def endless(self) -> str | None:
        """Why its rows cannot be drained, None if they can. Its `end` is then never `reached`."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that a sink never takes. `row`: its number in the table; `why`: after "column ... is ...: ", without a full stop."""

    row: int
    column: str
    why: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """How tasks stage a sink's rows: Parquet files, one per task, lane and partition value, named uniquely.

    `root`: URI of the directory that takes the files; None is the store's own outbox. `partition_by`: columns that
    become Hive-style folders and are left out of the file (Delta's layout). `lanes`: rows are split by a hash of
    column `lane_by`, so that each key's rows stay in one lane and in order. `schema`: rows are cast to it. `dictionary`:
    whether to look for repeated values: smaller files that stay, wasted time for files that are read once. `refuses`: called in
    tasks with rows as they are to be staged, gives the first one that the sink never takes; the task fails with it, before its
    epoch is committed. Pickled by the name of its module, which tasks import.
    """

    root: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    lanes: int = 1
    lane_by: str | None = None
    schema: pa.Schema | None = None
    compression: str = "zstd"
    dictionary: bool = True
    refuses: Callable[[pa.Table], RefusedRow | None] | None = None


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One file of prepared rows. `path` is relative to the plan's root; order is (batch, task, part)."""

    path: str
    size_bytes: int
    rows: int
    lane: int
    batch: int
    task: int
    part: int
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    stats: str = "{}"
    """Delta's per-file statistics as JSON: numRecords, minValues, maxValues, nullCount."""
    sha256: str = ""
    """Of the file's bytes, in hexadecimal; empty if an older version staged it: not known."""


@dataclass(frozen=True, slots=True)
class EpochOutput:
    """What one sink publishes for one decided epoch. `files` are in publishing order.

    `previous` is the epoch that this sink published before this one, 0 for its first; a sink's marker must name it, or
    this epoch itself, or one of `dropped`: epochs that a restore to an older one left behind, of which it is not known
    whether the sink has them. `acked` is the newest epoch that the log knows this sink has published, 0 if none, None
    if the caller does not say; `newest` the highest id ever decided: no marker of ours can be above it.
    `begun_after`: the sink took the place of another one after that epoch and is not known to have published since; then
    `previous` is 0, and no marker, or one up to that epoch, comes before this output.
    `decision` names the manifest that decided this epoch, a random id: a marker of this epoch under another name was
    published for a decision that the log has lost, and what the sink shows is not this output.
    `beside`: higher ids that do not stand on this epoch, as far as is known: a marker at one of them does not say that the sink has
    these rows. Then it is `PublishConflict`, with the marker's epoch as `marker`.
    `rows_before`: the newest epoch before this one that has rows for the sink, 0 if none. A marker below it says that the sink
    has lost rows: it comes from an older backup, or lost its newest commit. Then it is `PublishConflict`, too.
    """

    epoch: Epoch
    incarnation: Incarnation
    previous: Epoch
    root: str
    storage_options: Mapping[str, str]
    files: Sequence[StagedFile]
    acked: Epoch | None = None
    dropped: tuple[Epoch, ...] = ()
    newest: Epoch | None = None
    decision: str = ""
    begun_after: Epoch | None = None
    beside: tuple[Epoch, ...] = ()
    rows_before: int = 0


@dataclass(frozen=True, slots=True)
class StagedAhead:
    """What a sink may be sent of an epoch that is not decided, and may never be: its files so far, in publishing order.

    The files are durable. Within an incarnation a number stands for one epoch, and every call for it begins with the files
    of the call before.
    """

    epoch: Epoch
    incarnation: Incarnation
    root: str
    storage_options: Mapping[str, str]
    files: Sequence[StagedFile]


@dataclass(frozen=True, slots=True)
class PublishReceipt:
    """What a publish did; `replayed` says that the sink already had the epoch. `detail["parts_ms"]`, if there: how long its
    parts took, by name, for those who look."""

    epoch: Epoch
    rows: int
    replayed: bool
    detail: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Who publishes: stable names that fixed transactional ids and transaction application ids are made of."""

    job: str
    sink: str
    store_id: str
    """A uuid fixed when the store is created: two jobs of one name in two stores never share a fence."""
    incarnation: Incarnation
    publish_within_s: float | None = None
    """How long the job waits for a publish, all attempts together. One that fails should have said why before that."""


class Publisher(Protocol):
    """One incarnation's hand on the sink. Calls come from one thread, epoch after epoch."""

    def publish(self, output: EpochOutput) -> PublishReceipt:
        """Make the epoch's rows visible exactly once. Idempotent: an unknown outcome is asked, never guessed.

        Raises `Fenced` when a newer incarnation owns the sink, `PublishConflict` when the sink's marker contradicts
        `output.previous`, `PublishFailed` (retriable) for everything that may pass.
        """

    def close(self) -> None:
        """Release connections. Never publishes or aborts."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a sink's marker says. `incarnation`: who published it, 0 if the marker does not say."""

    epoch: Epoch
    incarnation: Incarnation
    is_of: Callable[[str], bool]
    """Whether the marker may be of the decision of this name: it is, or it does not say."""


@runtime_checkable
class TellsPublished(Protocol):
    """A sink that can say what it has, without changing anything and without fencing anybody."""

    def newest_published(self, context: SinkContext) -> Published | None:
        """The newest epoch this sink has of the job; None if none. Asked before a run decides anything."""


@runtime_checkable
class DeclaresPublished(Protocol):
    """A sink whose marker stays as long as its rows, with a command for the operator who has found out what it has."""

    def declaring(self, context: SinkContext, epoch: Epoch) -> str:
        """The command, as it is typed, that makes the marker say `epoch`. It publishes and removes nothing."""


@runtime_checkable
class Tidies(Protocol):
    """A publisher whose staged files lie outside of the store and are not removed with it."""

    def tidy(self) -> int:
        """Remove what dead incarnations staged and nobody will publish; how many files.

        Called once per incarnation, when every epoch decided by earlier ones is published.
        """


@runtime_checkable
class AheadPublisher(Publisher, Protocol):
    """A publisher that can be sent rows before their epoch is decided: into an open transaction, say.

    What was sent is a copy: the staged files stay the truth. `publish` shows what was sent if it is a beginning of the
    output's files, sent for this epoch by this publisher; it sends what is missing. Anything else it undoes first and
    sends all files, as without sending ahead (`connector_parts/sent_ahead.py` has the rule). It shows every row once and in
    the files' order either way.
    """

    def send_ahead(self, staged: StagedAhead) -> int:
        """Send what of these files is not sent yet; how many rows that was. No reader sees them before `publish`.

        What was sent for another epoch is undone first. May do nothing. Comes behind the `publish` of every epoch decided
        before. Raises as `publish` does; then the publisher is closed, and the next one knows nothing of what was sent.
        """

    def drop_ahead(self) -> None:
        """Undo what was sent ahead: its epoch will not be decided, or nobody goes on. Best effort, and bounded in time."""


@runtime_checkable
class GivesUp(Protocol):
    """A publisher whose `publish` can be ended from another thread."""

    def give_up(self) -> None:
        """End the call that is under way soon, and let each later one fail: the run is over. The epoch stays staged."""


@runtime_checkable
class SendsAhead(Protocol):
    """A sink whose publishers may be `AheadPublisher`s.

    `sends_ahead`: whether they are, as the sink is configured. A job uses it where its setting `send_ahead` is on.
    """

    sends_ahead: bool


@runtime_checkable
class CostlyCommits(Protocol):
    """A sink whose readers pay for every commit, such as a table with a file for each.

    `publish_every_ms`: at least so long from one publish to the next where each micro-batch ends an epoch, unless the user says
    otherwise.
    """

    publish_every_ms: int


@runtime_checkable
class Sink(Protocol):
    """An output that takes rows exactly once."""

    def check(self, spark: SparkSession, schema: StructType) -> None:
        """Raise `SinkInvalid` now for whatever would fail later: missing topic or table, columns, features, rights."""

    def stage(self, schema: StructType) -> StagePlan:
        """How tasks stage this sink's rows."""

    def publisher(self, spark: SparkSession, context: SinkContext) -> Publisher:
        """Open the publishing side for one incarnation."""

    def describe(self) -> Mapping[str, str]:
        """What a report may show. Never a secret."""
