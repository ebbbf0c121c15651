"""The wire format of the epoch log, format 3. Every model is frozen and refuses unknown fields.

Paths are relative:

- a state file's path to its operator's table (`Store.state(operator).location`),
- a segment's path to its edge (`Store.edge(name).location`),
- a staged file's path to its output's `root`, or, if that is empty, to the store (`Store.staged(sink).location`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from spark_ckpt.connector import StagedFile
from spark_ckpt.epochs.names import valid_name, valid_path
from spark_ckpt.wording import counted

FORMAT = 3
"""Version of the whole store: rows of the log, manifests and the layout of the folders. No other one is read."""

Reason = Literal["interval", "stop", "savepoint", "initial", "drained", "rescaled", "bootstrap", "adopt", "batch"]
Kind = Literal["job", "outbox"]
"""Owner of a store: a job, or the outbox of a plain query."""
Path = Annotated[str, AfterValidator(valid_path)]
OperatorName = Annotated[str, AfterValidator(lambda name: valid_name("operator", name))]
EdgeName = Annotated[str, AfterValidator(lambda name: valid_name("edge", name))]
SinkName = Annotated[str, AfterValidator(lambda name: valid_name("sink", name))]
SavepointName = Annotated[str, AfterValidator(lambda name: valid_name("savepoint", name))]
StandbyName = Annotated[str, AfterValidator(lambda name: valid_name("standby", name))]
Count = Annotated[int, Field(ge=0)]
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
"""SHA-256 of a file's bytes, in hexadecimal. Empty if it is unknown; then only the size is compared."""


class Record(BaseModel):
    """Base of everything written into the log."""

    # An unknown field is refused: a version that ignored it would decide without a fact of a newer one.
    model_config = ConfigDict(frozen=True, extra="forbid")


class Entry(Record):
    """Base of the log's rows. `history` is the sum of the seals of all rows before it, see `continuity`."""

    history: Digest = ""


class StateRange(NamedTuple):
    """The bytes of one key group in a state file: from `offset`, `size_bytes` of them, with their own SHA-256.

    They are a row group with a footer of its own, so a reader needs no other part of the file.
    """

    key_group: Count
    rows: Count
    offset: Count
    size_bytes: Count
    sha256: Digest = ""


class StateFile(Record):
    """One immutable file, with a range for each key group whose rows a task had to write.

    A "full" file holds all live rows of its key groups, a "changes" file the rows changed since the file before it.
    """

    path: Path
    size_bytes: Count
    epoch: Count
    incarnation: Count
    kind: Literal["full", "changes"]
    # A file without a key group could be in no chain, so nothing would ever supersede it.
    ranges: Annotated[tuple[StateRange, ...], Field(min_length=1)]
    sha256: Digest = ""

    @cached_property
    def rows(self) -> int:
        """Number of rows of all key groups."""
        return sum(each.rows for each in self.ranges)

    @cached_property
    def key_groups(self) -> frozenset[int]:
        """Key groups with a range."""
        return frozenset(each.key_group for each in self.ranges)


def chain_of(files: Sequence[StateFile], key_group: int) -> tuple[StateFile, ...]:
    """Return the chain of a key group among an operator's files, oldest first: its newest full file, and later changes."""
    chain: list[StateFile] = []
    for file in files:
        if key_group in file.key_groups:
            chain = [file] if file.kind == "full" else [*chain, file]
    return tuple(chain)


class OperatorSnapshot(Record):
    """State of one operator at an epoch: its files, oldest first.

    The chain of a key group is its newest full file and the changes after it. Every range of every file is in a chain:
    else rows that a full file left out would return for readers of the operator's table.

    - `watermarks`: per input with event time that has had a row, in milliseconds since 1970 UTC.
    - `late_rows`: rows that came too late within this epoch.
    """

    operator: OperatorName
    key_groups: Annotated[int, Field(ge=1)]
    key_schema: str
    state_schema: str
    files: tuple[StateFile, ...] = ()
    watermarks: dict[str, int] = {}
    late_rows: Count = 0


class SparkState(Record):
    """State of Spark's own operators after a micro-batch: files that Spark's state stores wrote, named by an index.

    - `incarnation`, `batch`: the query that ran the batch, and Spark's number of it.
    - `index`: path of the index below `SparkStates.location`, with its size and digest.
    - `files`, `state_bytes`: number and size of the files that the index names.
    - `provider`: class of Spark's state store; `checkpoint_format`: with 2, file names have the ids of attempts.
    - `partitions`: number of state partitions, which never changes.
    - `operators`: Spark's names of the operators, in the order of its numbers. The job's own ones are among them.
    """

    incarnation: Count
    batch: Count
    index: Path
    size_bytes: Count
    sha256: Digest
    files: Count
    state_bytes: Count
    provider: str
    checkpoint_format: Annotated[int, Field(ge=1)]
    partitions: Annotated[int, Field(ge=1)]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class StagedFileRecord(StagedFile):
    """A staged file as the log records it: a `StagedFile` whose content is validated.

    A dataclass, so that connectors take it as it is: a driver has a file per task and batch.
    """

    path: Path
    size_bytes: Count
    rows: Count
    lane: Count
    task: Count
    part: Count
    partition_values: dict[str, str | None] = field(default_factory=dict)
    sha256: Digest = ""


STAGED_FILE = TypeAdapter(StagedFileRecord)
"""Validates the fields of a staged file that a task reports."""


class StagedOutput(Record):
    """Files that one sink publishes for one epoch, in publishing order. An empty `root` stands for the store.

    `replaces`: the files are the sink's whole content, see `connector.EpochOutput`.
    """

    sink: SinkName
    root: str = ""
    files: tuple[StagedFileRecord, ...] = ()
    rows: Count = 0
    replaces: bool = False


class EdgeCut(Record):
    """One edge at an epoch: numbers of rows consumed and produced since its beginning, and the segments between, oldest
    first.

    The rows between are in flight. `row_schema` is the DDL of the edge's rows, as the job declares it. Paths are
    relative to `Store.edge(name).location`.
    """

    edge: EdgeName
    row_schema: str
    consumed: Count
    produced: Count
    files: tuple[StagedFileRecord, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Self:
        # A restart emits exactly these segments again: a difference in the count is rows lost or doubled.
        rows = sum(file.rows for file in self.files)
        if self.consumed + rows != self.produced:
            raise ValueError(
                f"edge {self.edge}: {counted(rows, 'row')} in flight between {self.consumed} and {self.produced}"
            )
        return self


class SinkAck(Record):
    """Acknowledgement: the sink has published everything up to and including `epoch`."""

    sink: SinkName
    epoch: Count
    detail: dict[str, JsonValue] = {}


class SinkIdentity(Record):
    """Endpoint of a sink: the table or topic that its name stands for.

    `after`: the newest committed epoch when it replaced another endpoint; 0 if it replaced none.
    """

    parts: dict[str, str] = {}
    after: Count = 0


class PartTime(Record):
    """Duration of a part of an earlier epoch, known only after that epoch's manifest was written."""

    epoch: Count
    part: Literal["decision", "publish"]
    sink: str = ""
    duration_ms: Count


class Timings(Record):
    """Measurements of the driver, for observability only. None, and a missing key, mean "not known".

    - `barrier_ms`: time until the batch with the barrier began.
    - `snapshot_ms`: duration of that batch.
    - `earlier`: durations of earlier epochs.
    - `lag_rows`: per source the rows that waited.
    """

    barrier_ms: Count | None = None
    snapshot_ms: Count | None = None
    earlier: tuple[PartTime, ...] = ()
    lag_rows: dict[str, int] = {}


class GraphNode(Record):
    """One source, operator, edge or sink, as `kind/name`, and the nodes that its rows come from directly."""

    id: str
    inputs: tuple[str, ...] = ()


class SparkBatch(Record):
    """Identity of a micro-batch of a plain query, from its checkpoint.

    - `query`: id in the file `metadata`; a new checkpoint gets another one.
    - `offsets`, `before`: SHA-256 of `offsets/<number>` and of `offsets/<number - 1>`, in hexadecimal. `before` is
      empty for a batch without a predecessor.
    """

    query: str
    number: Count
    offsets: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    before: Digest = ""


class Manifest(Record):
    """Everything that an epoch consists of.

    `base` is the epoch that it extends, `previous` the last id committed before it.

    - `source_identities`, `sink_identities`: endpoints that the names of `cursors` and `outputs` stood for. Sinks that
      the job has dropped stay, in case their names return. Missing for connectors
      without endpoints.
    - `held`: deferred rows, staged up to this epoch and published with a later one. A sink is in `outputs` or in
      `held`.
    - `rows_before`: per sink the newest earlier epoch of the branch that has rows for it; a sink without one is
      missing.
    - `late_watermark_ms`: watermark that decides if rows of the next batch are late. It is one batch older than
      `watermark_ms`. None before the first epoch.
    - `spark_state`: state of Spark's own operators; None for a job without them.
    - `spark_batch`: the micro-batch that the epoch of an outbox stands for; None for a job.
    - `timings`, `graph`: for observability only.
    """

    format: int = FORMAT
    job: str
    epoch: Count
    incarnation: Count
    attempt: str
    base: Count = 0
    previous: Count = 0
    created_ms: int
    duration_ms: int = 0
    reason: Reason = "interval"
    cursors: dict[str, dict[str, JsonValue]] = {}
    watermark_ms: int = 0
    late_watermark_ms: int | None = None
    operators: dict[OperatorName, OperatorSnapshot] = {}
    outputs: dict[SinkName, StagedOutput] = {}
    held: dict[SinkName, StagedOutput] = {}
    edges: dict[EdgeName, EdgeCut] = {}
    spark_state: SparkState | None = None
    rows_in: int = 0
    rows_out: int = 0
    rejected: dict[str, int] = {}
    acks: tuple[SinkAck, ...] = ()
    source_identities: dict[str, dict[str, str]] = {}
    sink_identities: dict[SinkName, SinkIdentity] = {}
    rows_before: dict[SinkName, Count] = {}
    spark_batch: SparkBatch | None = None
    timings: Timings | None = None
    graph: tuple[GraphNode, ...] = ()

    @property
    def state_bytes(self) -> int:
        """Size of the state of all operators, with Spark's own."""
        ours = sum(file.size_bytes for each in self.operators.values() for file in each.files)
        return ours + (self.spark_state.state_bytes if self.spark_state else 0)

    @property
    def rows_so_far(self) -> dict[str, int]:
        """`rows_before` of an epoch that extends this one."""
        # Held rows count for the epoch that publishes them.
        own = {sink: self.epoch for sink, output in self.outputs.items() if output.files}
        return {**self.rows_before, **own}


class Holder(Record):
    """A driver process. `pid_start` (clock ticks since boot) tells it from a later process with the same number."""

    host: str
    boot_id: str = ""
    pid: int = 0
    pid_start: int = 0
    name: str = ""

    def __str__(self) -> str:
        named = f"{self.name} " if self.name else ""
        return f"{named}(process {self.pid} on {self.host})"


class CreatedRecord(Entry):
    """First row of every log. `kind` of the owner, whose name is `job`."""

    job: str
    store_id: str
    kind: Kind = "job"


class IncarnationRecord(Entry):
    """Start of an incarnation, which continues from epoch `base`.

    `taken_back`: sinks that had less than the log says when a restore named an epoch, each with its newest epoch.
    """

    incarnation: Annotated[int, Field(ge=1)]
    holder: Holder
    base: Count
    restored_from: str
    lease_ms: Count
    lease_expires_ms: int
    acks: tuple[SinkAck, ...] = ()
    taken_back: dict[SinkName, Count] = {}


class EpochBrief(Entry):
    """Part of a manifest that the log's state keeps.

    - `holds`: sinks whose rows a later epoch publishes.
    - `index`: the newest index of `protocol="index"` that the epoch serves; 0 without that protocol.
    - `after`: the newest index that its base serves. It stamps the rows of the epoch.
    """

    epoch: Count
    incarnation: Count
    attempt: str
    base: Count
    previous: Count
    created_ms: int
    duration_ms: int
    reason: Reason
    rows_in: int
    rows_out: int
    sinks: tuple[SinkName, ...]
    holds: tuple[SinkName, ...] = ()
    acks: tuple[SinkAck, ...]
    lease_expires_ms: int = 0
    timings: Timings | None = None
    spark_batch: SparkBatch | None = None
    state_bytes: Count | None = None
    index: Count = 0
    after: Count = 0

    @classmethod
    def of(cls, manifest: Manifest, lease_expires_ms: int, index: int = 0, after: int = 0) -> EpochBrief:
        """Return the brief of a manifest whose commit renews the lease until `lease_expires_ms` (ms since 1970 UTC)."""
        # By name: a field that both have means the same in both.
        shared = {name: getattr(manifest, name) for name in cls.model_fields if name in Manifest.model_fields}
        sinks, holds = (
            tuple(sorted(manifest.outputs)),
            tuple(sorted(sink for sink, held in manifest.held.items() if held.files)),
        )
        return cls(
            **shared,
            sinks=sinks,
            holds=holds,
            lease_expires_ms=lease_expires_ms,
            state_bytes=manifest.state_bytes,
            index=index,
            after=after,
        )


class Heartbeat(Entry):
    """Renewal of the lease without an epoch."""

    incarnation: Count
    lease_expires_ms: int


class Released(Entry):
    """End of an incarnation. The lease is free at once, unless the run `keeps` it for its next incarnation.

    `why`: "stopped", or the error that ended it; empty if unknown.
    """

    incarnation: Count
    why: str = ""
    keeps: bool = False


class HandoverAsked(Entry):
    """Request that `incarnation` commits a final epoch and releases its lease, so that a standby takes over."""

    incarnation: Count


class MaintenanceTurn(Record):
    """Leases given to other standbys since this one had one, and the term of its last one in ms (0: it had none)."""

    since: Count = 0
    ttl_ms: Count = 0


class MaintenanceLeased(Entry):
    """The checkpoint lease: the standby `holder` does the maintenance, and the driver of `incarnation` does not.

    The number of the row is the token of the lease.

    - `boot`, `reported_ms`: the holder's own clock at a moment before the lease was issued.
    - `budget_ms`: the time that the holder may work, by that clock.
    - `ttl_ms`: the term of the lease, by the driver's clock.
    - `turns`: the turns of all standbys, including this lease.
    """

    incarnation: Count
    holder: StandbyName
    boot: Count
    reported_ms: Count
    budget_ms: Count
    ttl_ms: Count
    turns: dict[StandbyName, MaintenanceTurn] = Field(default_factory=dict)


class MaintenanceEnded(Entry):
    """End of lease `token`: its holder has finished, or gives it back for the reason `failure`.

    After a finished turn:

    - The tables show `epoch` as incarnation `incarnation` continues from it.
    - Files that retention does not keep are deleted.
    - The files of the epoch were read and compared; `damage` describes what is wrong with them.

    `clock_ms` is the holder's own clock.
    """

    token: Count
    incarnation: Count = 0
    epoch: Count = 0
    clock_ms: Count = 0
    failure: str = ""
    damage: str = ""


class Published(Entry):
    """Acknowledgements that no epoch has carried. The row renews the lease for its term, as an epoch does."""

    incarnation: Count
    acks: tuple[SinkAck, ...]


class SavepointRecord(Entry):
    """A name for an epoch, which retention then keeps."""

    name: SavepointName
    epoch: Count


class SavepointDropped(Entry):
    """End of a savepoint: the name is free again and its epoch subject to retention."""

    name: SavepointName


class Position(Record):
    """Position of a reader on an edge between two jobs: `files` of the `of` files of an epoch are read, and all before.

    - `epoch`: the newest epoch of the sender with rows for the edge that the reader has begun; 0 before the first.
    - `attempt`: id of that epoch's manifest; empty if the reader began after the epoch without seeing it.
    """

    epoch: Count = 0
    attempt: str = ""
    files: Count = 0
    of: Count = 0

    @property
    def whole(self) -> bool:
        """True if the epoch has no file that is not read."""
        return self.files == self.of

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.files > self.of:
            raise ValueError(f"{self.files} of {self.of} files")
        return self


class ReaderMoved(Entry):
    """Position of another job's source on an edge of this job: retention keeps what comes after it.

    - `reader`: random id of the source.
    - `place`: its folder in the other job's store, for commands.
    """

    reader: str
    place: str
    edge: SinkName
    position: Position


class IndexSaid(Entry):
    """The newest epoch serves `index`, too: its program has nothing new to put into another epoch."""

    incarnation: Count
    epoch: Count
    index: Count


class Folded(Entry):
    """Summary of rows that were dropped from the log, written when its files are replaced."""

    last: Count
    acked: dict[SinkName, int]
    owed: dict[SinkName, tuple[int, ...]]
    """Unpublished epochs up to `last`, per sink."""
    ancestors: dict[int, int] | None = None
    """Newest kept ancestor of each kept epoch whose base was dropped; 0 if none is kept. None if no epoch was dropped."""


class LossAccepted(Entry):
    """The operator of the job accepts that the log has lost epochs, or incarnations, that sinks have seen.

    Epochs above `after` up to `epoch` are lost. Later ids are above `epoch` and `incarnation`. `on`: the epoch that all
    lost ones descend from; 0 if unknown.
    """

    after: Count
    epoch: Count
    incarnation: Count
    on: Count = 0


AnyRecord = (
    CreatedRecord
    | IncarnationRecord
    | EpochBrief
    | Heartbeat
    | Released
    | HandoverAsked
    | MaintenanceLeased
    | MaintenanceEnded
    | Published
    | SavepointRecord
    | SavepointDropped
    | Folded
    | LossAccepted
    | ReaderMoved
    | IndexSaid
)
