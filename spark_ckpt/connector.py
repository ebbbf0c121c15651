"""The contract of a connector: a source with cursors, a sink with staged rows and an idempotent publish.

A connector package imports this module, `spark_ckpt.errors` and `checkpoint_protocols.ids`. It may import
`spark_ckpt.jars` if it brings jars, `spark_ckpt.connector_parts`, and in its tests `spark_ckpt.testing`. The core never
imports a connector: it finds `Connector` objects by their entry points (`spark_ckpt.connectors`).

Source: `start` pins a position once, `read` streams the rows right after a cursor, `cursor` translates one line of
Spark's offset log.

Sink (two-phase commit): tasks *stage* rows while the epoch runs (prepared). The commit of the epoch's manifest decides.
`Publisher.publish` is idempotent redo after it (committed).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import pyarrow as pa

from checkpoint_protocols.ids import Epoch, Incarnation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_ckpt.errors import CkptError
    from spark_ckpt.jars import Choice

CONTRACT = 1
"""Version of this contract. It grows when an older core cannot host a newer connector."""

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
Cursor = Mapping[str, Json]
"""A source's position, JSON-serialisable: every row before it is in the epoch, no row after it is."""


@dataclass(frozen=True, slots=True)
class Connector:
    """Declaration of a connector: `CONNECTOR` in the module that the package's entry point names.

    - `name`: name of the entry point, as in `spark_ckpt.session("x", name)`.
    - `contract`: the `CONTRACT` that it was written for, as a number.
    - `sources`, `sinks`: names of classes in that module, which may import them at their first use.
    - `jars`: jars that a session needs on its class path, every artefact locked (`spark_ckpt.jars.read_lock`).
    - `settings`: Spark settings that a session needs. A user's own settings win.
    - `published`: like `TellsPublished.newest_published`, for commands, which have no sink object. It takes the
      recorded identity of a sink, the context and storage options. Raises `SinkInvalid`.
    """

    name: str
    contract: int
    sources: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    jars: tuple[Choice, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    published: Callable[[Mapping[str, str], SinkContext, Mapping[str, str]], PublishedEpoch | None] | None = None


@runtime_checkable
class Source(Protocol):
    """A replayable input: every read from a cursor yields the same rows in the same order."""

    def check(self, spark: SparkSession) -> None:
        """Raise `SourceInvalid` (or another `CkptError`) now for anything that would fail later."""

    def start(self, spark: SparkSession) -> Cursor:
        """Resolve the configured start (earliest, latest, ...) to a cursor. Called once in a job's life."""

    def read(self, spark: SparkSession, cursor: Cursor) -> DataFrame:
        """Return a streaming DataFrame of the rows after `cursor`. The schema is the same on every call."""

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        """Return the cursor of a batch's end, for one source's line of Spark's offset log (`offsets/N`).

        `previous`: end of the batch before it; for the first batch the cursor that was read from.
        """

    def end(self, spark: SparkSession) -> Cursor:
        """Return the position after everything that is readable now (read_committed where that exists)."""

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        """Return True if everything up to `end` lies before `cursor`."""

    def describe(self) -> Mapping[str, str]:
        """Return the facts that a report may show: kind, topic or path. Never a secret."""


@runtime_checkable
class Identified(Protocol):
    """A source or sink that knows the identity of its table, topic or folder, so that a job detects a replacement."""

    def identity(self, spark: SparkSession) -> Mapping[str, str]:
        """Return the parts that tell the endpoint from every other: kind, cluster, table id, ... No secrets.

        The parts are the same at every start. An unknown part is empty, e.g. the id of a table that a sink will create;
        the driver calls again after a publish. Part "path" is a place: it may change if the endpoint was moved. The
        other parts identify it. A job refuses a recorded part that is missing or different, and records new parts.
        Called after `check`, and may use its results. Raises as `check` does.

        For a source, the driver calls it on threads of its own: at each start, before each commit, and every few
        seconds. Each call queries the system again and caches nothing, so that an epoch with rows of another topic is
        never committed. So it has to be one cheap request; `KeepsConnection` saves the connecting.
        """


@runtime_checkable
class KeepsConnection(Protocol):
    """A source that keeps open the connection that `identity` uses."""

    def disconnect(self) -> None:
        """Close the connection; a later call opens it again. Called when an incarnation has ended."""


@runtime_checkable
class KeepsUnchanged(Protocol):
    """A source of several parts, e.g. topics: if one part is replaced, the job continues with the others at their
    positions.
    """

    def renewed(self, spark: SparkSession, cursor: Cursor, changed: Collection[str]) -> Cursor:
        """Return the cursor after a confirmed replacement: unchanged parts stay at `cursor`, the others begin at their
        start.

        `changed`: names of the parts of `Identified.identity` that differ from those recorded with `cursor`.
        """


@runtime_checkable
class KnowsColumns(Protocol):
    """A source that knows its columns without a position.

    For any other source a job calls `start` and `read` at each start to learn them, also if it continues from an epoch
    and the configured start is gone by now.
    """

    def columns(self, spark: SparkSession) -> StructType:
        """Return the schema of `read`. Raises as `read`, but not for a position."""


@runtime_checkable
class SkipsLost(Protocol):
    """A source that can continue although rows after the cursor are lost. Its `read` raises `RowsLost` then."""

    def past_lost(self, spark: SparkSession, cursor: Cursor) -> Cursor:
        """Return the position of the first row after `cursor` that is behind every lost row; `cursor` itself if no row
        is lost.

        Called if the user has confirmed the loss, and again at each restart until an epoch has the new cursor.
        """


@runtime_checkable
class LimitsBatches(Protocol):
    """A source whose stream obeys a limit of rows per batch (Spark's admission control, `ReadMaxRows`)."""

    @property
    def rows_per_batch(self) -> int | None:
        """The configured limit; None if a batch takes everything."""

    def limited(self, rows: int) -> Source | None:
        """Return the same source in batches of at most `rows`.

        Return None if its own are no larger or have other bounds.

        If Spark divides the limit, a batch may have up to one row more for each partition.
        """


@runtime_checkable
class CountsLag(Protocol):
    """A source that can count the rows between two positions."""

    def lag(self, cursor: Cursor, end: Cursor) -> int:
        """Return the number of rows after `cursor` and before `end`; at least 0."""


@runtime_checkable
class ShowsCursor(Protocol):
    """A source that publishes the job's progress for other systems, e.g. as a consumer group.

    The job never reads it back.
    """

    @property
    def shown_as(self) -> str | None:
        """Name under which the progress is published; None to publish nothing."""

    def show(self, cursor: Cursor) -> None:
        """Publish the cursor of a committed epoch. It may be older than the last one shown.

        Called on a thread of its own. Raises `SourceInvalid`, which is logged and ends nothing.
        """


@dataclass(frozen=True, slots=True)
class Seed:
    """Content of a fresh Spark checkpoint that makes one of Spark's own sources begin at an epoch.

    - `offset`: the source's line in Spark's offset log.
    - `files`: texts in the source's own folder of the checkpoint, by name.
    """

    offset: str
    files: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class BeginsAtSeed(Protocol):
    """A source whose stream begins at the position in Spark's checkpoint, because `read` cannot set it."""

    def seed(self, cursor: Cursor) -> Seed | None:
        """Return the content of a fresh checkpoint that begins at `cursor`; None if the stream finds its beginning
        itself.
        """


@dataclass(frozen=True, slots=True)
class Adopted:
    """Position of a plain query's source, as a cursor.

    `identity`: the parts that the offset reveals, named as in `Identified.identity`; empty if it reveals none.
    """

    cursor: Cursor
    identity: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Adopts(Protocol):
    """A source that can continue from a plain query that read the same input with Spark's own reader."""

    @classmethod
    def adopted(cls, offset: str) -> Adopted:
        """Return the cursor right after the rows that a query has read up to `offset`, a line of Spark's offset log.

        Raises `SourceInvalid` for an offset of another reader, or one that no cursor can express.
        """


class Folder(Protocol):
    """A folder of the store that belongs to one source."""

    @property
    def uri(self) -> str:
        """URI of the folder."""

    def read_bytes(self, path: str) -> bytes:
        """Return the bytes of a file. Raises FileNotFoundError."""

    def write_bytes(self, path: str, data: bytes) -> None:
        """Create or replace a file. It is durable when the call returns."""

    def entries(self) -> list[str]:
        """Return the names in the folder."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files. Missing files are ignored."""


@runtime_checkable
class Remembers(Protocol):
    """A source that keeps its consumed input outside of its cursors, or that deletes input that is no longer needed."""

    def remember_in(self, folder: Folder) -> None:
        """Set the folder for that. Called before `start`, `read` and `cursor` of a run."""

    def check_cursor(self, cursor: Cursor | None, newest: Cursor) -> None:
        """Raise `SourceInvalid` if rows between `cursor` (None: the configured start) and `newest` cannot be read
        again.
        """

    def release(self, kept: Sequence[Cursor]) -> None:
        """Release input. The job can restore only `kept` cursors; everything before all of them is published."""


@runtime_checkable
class HoldsRows(Protocol):
    """A source whose system keeps rows as long as its readers may need them."""

    def hold(self, kept: Sequence[Cursor]) -> None:
        """Ask the system to keep every row after the first of `kept`.

        `kept`: cursors of the job's newest kept epochs without a gap, oldest first. A savepoint before a gap is no
        part of it. Called with the first position before it is committed, when the job starts, and after it has
        forgotten epochs.
        """


@runtime_checkable
class ChecksMemory(Protocol):
    """A source that `Remembers`, and whose folder can be checked without the program of the job.

    It is found by part "kind" of its identity, which is then the name of its connector.
    """

    @classmethod
    def memory_damage(cls, folder: Folder, cursors: Sequence[Cursor]) -> Sequence[CkptError | None]:
        """Return for each cursor the error that a start from it would raise because of the folder; None for no error.

        It reads every file that such a start reads, each once, and changes nothing.
        """


@runtime_checkable
class MayNeverEnd(Protocol):
    """A source that may have no end."""

    @property
    def endless(self) -> str | None:
        """Reason that its rows cannot be drained; None if they can. Its `end` is then never `reached`."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that a sink never takes.

    - `row`: its number in the table.
    - `why`: text after "column ... is ...: ", without a full stop.
    """

    row: int
    column: str
    why: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Plan by which tasks stage a sink's rows: uniquely named Parquet files, one per task, lane and partition value.

    - `root`: URI of the directory for the files; None for the sink's folder in the store.
    - `partition_by`: columns that become Hive-style folders and are left out of the file (Delta's layout).
    - `lanes`: number of shards. Rows are split by a hash of column `lane_by`, so that each key's rows stay in one shard
      and in order.
    - `schema`: rows are cast to it.
    - `dictionary`: search for repeated values. Files that stay become smaller; for files that are read once it wastes
      time.
    - `refuses`: called in tasks with the rows to be staged. It returns the first row that the sink never takes, and the
      task fails before the epoch is committed. It is pickled by the name of its module, which tasks import.
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
    """One file of staged rows. `path` is relative to the plan's root; the order is (batch, task, part)."""

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
    """SHA-256 of the file's bytes, in hexadecimal; empty if it is unknown."""


@dataclass(frozen=True, slots=True)
class EpochOutput:
    """Output of one committed epoch for one sink."""

    epoch: Epoch
    incarnation: Incarnation
    previous: Epoch
    """Epoch that this sink published before this one; 0 for its first.

    The sink's marker must name it, this epoch itself, or one of `dropped`.
    """
    root: str
    storage_options: Mapping[str, str]
    files: Sequence[StagedFile]
    """Staged files in publishing order."""
    acked: Epoch | None = None
    """Newest epoch that this sink has acknowledged in the log; 0 if none, None if the caller does not say."""
    dropped: tuple[Epoch, ...] = ()
    """Epochs that a restore of an older one left, and that the sink may have or not."""
    newest: Epoch | None = None
    """Highest id ever committed. No marker of this job can be above it."""
    decision: str = ""
    """Random id of the manifest that committed this epoch.

    A marker of this epoch with another id was published for a commit that the log has lost: the sink shows other rows.
    """
    begun_after: Epoch | None = None
    """Epoch after which the sink replaced another endpoint, if it has not acknowledged anything since; else None.

    Then `previous` is 0, and the sink has no marker, or one up to that epoch.
    """
    diverged: tuple[Epoch, ...] = ()
    """Diverged ids above this epoch. A marker at one of them does not prove that the sink has these rows.

    Then `publish` raises `PublishConflict`, with the marker's epoch as `marker`.
    """
    rows_before: int = 0
    """Newest epoch before this one that has rows for the sink; 0 if none.

    A marker below it shows that the sink has lost rows, e.g. by an older backup. Then `publish` raises
    `PublishConflict`, too.
    """
    replaces: bool = False
    """True if the files are the sink's whole content: the publish replaces all rows of earlier epochs in one step.

    Without files the sink is empty then. Only a sink that `ReplacesRows` gets such an output.
    """


@dataclass(frozen=True, slots=True)
class StagedEarly:
    """Files of an uncommitted epoch for an early send, in publishing order. The epoch may never be committed.

    The files are durable. Within an incarnation a number stands for one epoch. Every call for it begins with the files
    of the call before.
    """

    epoch: Epoch
    incarnation: Incarnation
    root: str
    storage_options: Mapping[str, str]
    files: Sequence[StagedFile]


@dataclass(frozen=True, slots=True)
class PublishReceipt:
    """Result of a publish. `replayed`: the sink already had the epoch.

    `detail["parts_ms"]`, if present: durations of the publish's parts, by name, for observability.
    """

    epoch: Epoch
    rows: int
    replayed: bool
    detail: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkContext:
    """Identity of a publisher: stable names that form transactional ids and transaction application ids."""

    job: str
    sink: str
    store_id: str
    """UUID of the store. Two jobs of one name in two stores never share a fence."""
    incarnation: Incarnation
    publish_within_s: float | None = None
    """Time that the job waits for a publish, all attempts together. A failing publish should raise before that."""


class Publisher(Protocol):
    """Publishing side of one incarnation. Calls come from one thread, epoch after epoch."""

    def publish(self, output: EpochOutput) -> PublishReceipt:
        """Make the epoch's rows visible exactly once. Idempotent: query an unknown outcome, never guess it.

        - Raises `Fenced` if a newer incarnation owns the sink.
        - Raises `PublishConflict` if the sink's marker contradicts `output.previous`.
        - Raises `PublishFailed` (retriable) for anything that may pass.
        - Raises `IdentityChanged` for another table or topic of the same name. The job adds the epoch to restore.
        """

    def close(self) -> None:
        """Release connections. Never publishes or aborts."""


@runtime_checkable
class Fences(Protocol):
    """A publisher whose opening alone does not keep those of older incarnations from publishing."""

    def fence(self) -> None:
        """Keep them from publishing from now on. Idempotent. Raises as `Publisher.publish`.

        Called after a restore has left epochs that a driver which was paused may be about to publish.
        """


@dataclass(frozen=True, slots=True)
class PublishedEpoch:
    """Content of a sink's marker. `incarnation`: the one that published it; 0 if the marker does not say."""

    epoch: Epoch
    incarnation: Incarnation
    is_of: Callable[[str], bool]
    """Function that returns True if the marker may belong to the commit of this id: it does, or it does not say."""


@runtime_checkable
class TellsPublished(Protocol):
    """A sink that can report its newest epoch, without changing anything and without fencing any publisher."""

    def newest_published(self, context: SinkContext) -> PublishedEpoch | None:
        """Return the newest epoch of the job in this sink; None if there is none. Called before a run commits anything."""


@runtime_checkable
class DeclaresPublished(Protocol):
    """A sink whose marker stays as long as its rows, with a command for an operator who knows its content."""

    def declaring(self, context: SinkContext, epoch: Epoch) -> str:
        """Return the command line that sets the marker to `epoch`. It publishes and removes nothing."""


@runtime_checkable
class Tidies(Protocol):
    """A publisher whose staged files lie outside of the store and are not removed with it."""

    def tidy(self) -> int:
        """Delete the files that dead incarnations staged and that no publisher needs. Return their number.

        Called once per incarnation, after all epochs committed by earlier ones are published.
        """


@runtime_checkable
class EarlyPublisher(Publisher, Protocol):
    """A publisher with early send: it takes rows before their epoch is committed, e.g. into an open transaction.

    The staged files stay authoritative; the sent rows are a copy. `publish` shows the sent rows if they are a prefix of
    the output's files, sent for this epoch by this publisher. It then sends the missing rows. Otherwise it aborts them
    and sends all files, as without early send (`connector_parts/early_sends.py` has the rule). In both cases it shows
    every row once and in the files' order.
    """

    def send_early(self, staged: StagedEarly) -> int:
        """Send the rows of these files that are not sent yet.

        Return their number. No reader sees them before `publish`.

        Rows sent for another epoch are aborted first. It may do nothing. It is called after the `publish` of every
        epoch committed before. Raises as `publish` does; then the publisher is closed, and the next one knows nothing
        of the sent rows.
        """

    def drop_early_send(self) -> None:
        """Abort the rows of an early send, because their epoch will not be committed or the run ends.

        Best effort, bounded in time.
        """


@runtime_checkable
class GivesUp(Protocol):
    """A publisher whose `publish` can be ended from another thread."""

    def give_up(self) -> None:
        """End the running call soon, and let each later one fail: the run is over. The epoch stays staged."""


@runtime_checkable
class SendsEarly(Protocol):
    """A sink whose publishers may be `EarlyPublisher`s.

    `sends_early`: True if they are, in the sink's configuration. A job uses it if its setting `send_early` is on.
    """

    sends_early: bool


@runtime_checkable
class CostlyCommits(Protocol):
    """A sink whose readers pay for every commit, such as a table with a file for each.

    `publish_every_ms`: minimum time between two publishes if each micro-batch ends an epoch. A user's setting wins.
    """

    publish_every_ms: int


@dataclass(frozen=True, slots=True)
class SinkRows:
    """A sink of an outbox, and the rows of the query that it gets.

    - `columns`: SQL expressions, e.g. "id" or "amount * 2 AS twice"; without any the sink gets all columns.
    - `named`: SQL expressions by column name.
    - `where`: SQL condition of a row that the sink gets; None for all rows. A null is no.
    """

    sink: Sink
    columns: tuple[str, ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None


@runtime_checkable
class ReplacesRows(Protocol):
    """A sink that can replace all its rows in one step, as output mode "complete" needs it.

    `replaces_rows`: True if its publishers do, in the sink's configuration, for an output with `EpochOutput.replaces`.
    """

    @property
    def replaces_rows(self) -> bool:
        """See the class."""


class SelectsRows:
    """Base of sinks with a method that selects rows of a query for them."""

    def rows(self, *columns: str, where: str | None = None, **named: str) -> SinkRows:
        """Return this sink with the rows and columns that it gets from an outbox: see `SinkRows`."""
        return SinkRows(cast("Sink", self), columns, named, where)


@runtime_checkable
class Sink(Protocol):
    """An output that takes rows exactly once."""

    def check(self, spark: SparkSession, schema: StructType) -> None:
        """Raise `SinkInvalid` now for anything that would fail later: missing topic or table, columns, features,
        rights.
        """

    def stage(self, schema: StructType) -> StagePlan:
        """Return the plan by which tasks stage this sink's rows."""

    def publisher(self, spark: SparkSession, context: SinkContext) -> Publisher:
        """Open the publishing side for one incarnation."""

    def describe(self) -> Mapping[str, str]:
        """Return the facts that a report may show. Never a secret."""
