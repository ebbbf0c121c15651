"""The wire format of the epoch log, format 2. Every model is frozen and refuses fields it does not know.

Format 1 is read too: a field that format 2 added has a default, and the default means "not known".

Paths are relative: a state file's to its operator's table (`Store.state(operator).location`), a segment's to its edge's
(`Store.edge(name).location`), a staged file's to its
output's `root`, or to the sink's outbox (`Store.outbox(sink).location`) when the root is empty.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from spark_ckpt.connector import StagedFile
from spark_ckpt.store.names import valid_name, valid_path
from spark_ckpt.wording import counted

FORMAT = 2
"""Version of the whole store: the log's rows, the manifests and the layout of the folders. What is written."""

READABLE = (1, 2)
"""What is read. Format 2 added the digests of files, and rows that vouch for the rows before them."""

Reason = Literal["interval", "stop", "savepoint", "initial", "drained", "rescaled", "bootstrap", "adopt"]
Path = Annotated[str, AfterValidator(valid_path)]
OperatorName = Annotated[str, AfterValidator(lambda name: valid_name("operator", name))]
EdgeName = Annotated[str, AfterValidator(lambda name: valid_name("edge", name))]
SinkName = Annotated[str, AfterValidator(lambda name: valid_name("sink", name))]
SavepointName = Annotated[str, AfterValidator(lambda name: valid_name("savepoint", name))]
StandbyName = Annotated[str, AfterValidator(lambda name: valid_name("standby", name))]
Count = Annotated[int, Field(ge=0)]
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
"""SHA-256 of a file's bytes, in hexadecimal; empty in format 1: not known, such a file is checked by its size."""


class Record(BaseModel):
    """Base of everything written into the log."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Entry(Record):
    """Base of the log's rows. `history`: what the row says about all rows before it, see `continuity`."""

    history: Digest = ""


class StateFile(Record):
    """One immutable file of one key group: all live rows ("full") or the rows changed since the file before it."""

    path: Path
    size_bytes: Count
    rows: Count
    key_group: Count
    epoch: Count
    incarnation: Count
    kind: Literal["full", "changes"]
    sha256: Digest = ""


class OperatorSnapshot(Record):
    """One operator's state at an epoch: per key group one full file or none, then changes, oldest first.

    `watermarks`: of every input that has event time and has had a row, epoch milliseconds. `late_rows`: of the epoch. Neither is in
    what older versions wrote.
    """

    operator: OperatorName
    key_groups: Annotated[int, Field(ge=1)]
    key_schema: str
    state_schema: str
    files: tuple[StateFile, ...] = ()
    watermarks: dict[str, int] = {}
    late_rows: Count = 0


class StagedFileRecord(Record):
    """A staged file as the log has it; `connector.StagedFile` is the same outside of the store."""

    path: Path
    size_bytes: Count
    rows: Count
    lane: Count
    batch: int
    task: Count
    part: Count
    partition_values: dict[str, str | None] = {}
    stats: str = "{}"
    sha256: Digest = ""

    def staged_file(self) -> StagedFile:
        """For connectors."""
        return StagedFile(**self.model_dump())


class StagedOutput(Record):
    """What one sink has to publish for one epoch, in publishing order. An empty root is the store's outbox."""

    sink: SinkName
    root: str = ""
    files: tuple[StagedFileRecord, ...] = ()
    rows: Count = 0


class EdgeCut(Record):
    """One edge at an epoch: rows consumed and produced since its beginning; what lies between is in flight, oldest first.

    `row_schema` is DDL, as the job declares the edge's rows. Paths are relative to `Store.edge(name).location`.
    """

    edge: EdgeName
    row_schema: str
    consumed: Count
    produced: Count
    files: tuple[StagedFileRecord, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Self:
        rows = sum(file.rows for file in self.files)
        if self.consumed + rows != self.produced:
            raise ValueError(
                f"edge {self.edge}: {counted(rows, 'row')} in flight between {self.consumed} and {self.produced}"
            )
        return self


class SinkAck(Record):
    """The sink has everything up to and including `epoch`."""

    sink: SinkName
    epoch: Count
    detail: dict[str, JsonValue] = {}


class SinkIdentity(Record):
    """Which table or topic a sink is. `after`: the highest epoch decided when it took the place of another one, else 0."""

    parts: dict[str, str] = {}
    after: Count = 0


class PartTime(Record):
    """How long a part of an earlier epoch took: known only after its manifest was written."""

    epoch: Count
    part: Literal["decision", "publish"]
    sink: str = ""
    duration_ms: Count


class Timings(Record):
    """What the driver has measured, for those who look; nothing depends on it. None, and what is not there: not known.

    `barrier_ms`: until the batch began that the barrier is in; `snapshot_ms`: that batch. `earlier`: of epochs before this one.
    `lag_rows`: rows that waited at the sources.
    """

    barrier_ms: Count | None = None
    snapshot_ms: Count | None = None
    earlier: tuple[PartTime, ...] = ()
    lag_rows: dict[str, int] = {}


class GraphNode(Record):
    """One source, operator, edge or sink, as `kind/name`, and what its rows come from directly."""

    id: str
    inputs: tuple[str, ...] = ()


class Manifest(Record):
    """Everything an epoch consists of. `base` is the epoch it extends, `previous` the last id decided before it.

    The identities say what the names of `cursors` and `outputs` stood for; those of sinks that the job has dropped
    stay, in case their names come back. Absent: written before there were any, or by connectors that have none.
    `held`: rows that were staged up to this epoch and are published with a later one; a sink is in `outputs` or here.
    `rows_before`: per sink the newest earlier epoch of the lineage that has rows for it; a sink that has none is absent.
    `late_watermark_ms`: what rows of the next batch are late by, a batch older than `watermark_ms`. None if an older version
    wrote the manifest. `timings` and `graph`: for those who look.
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
    rows_in: int = 0
    rows_out: int = 0
    rejected: dict[str, int] = {}
    acks: tuple[SinkAck, ...] = ()
    source_identities: dict[str, dict[str, str]] = {}
    sink_identities: dict[SinkName, SinkIdentity] = {}
    rows_before: dict[SinkName, Count] = {}
    timings: Timings | None = None
    graph: tuple[GraphNode, ...] = ()

    @property
    def rows_so_far(self) -> dict[str, int]:
        """`rows_before` of an epoch that extends this one."""
        own = {sink: self.epoch for sink, output in self.outputs.items() if output.files}
        return {**self.rows_before, **own}


class Holder(Record):
    """A driver process. `pid_start` (clock ticks since boot) tells a process from a later one with its number."""

    host: str
    boot_id: str = ""
    pid: int = 0
    pid_start: int = 0
    name: str = ""

    def __str__(self) -> str:
        named = f"{self.name} " if self.name else ""
        return f"{named}(process {self.pid} on {self.host})"


class CreatedRecord(Entry):
    """The first row of every log."""

    job: str
    store_id: str


class IncarnationRecord(Entry):
    """An incarnation of the job begins: it continues from epoch `base`. `passed_over`: damaged epochs behind it that "latest"
    did not choose, also in earlier incarnations since somebody last chose an epoch by name or number. `taken_back`: sinks that
    had less than the log says when an epoch was named to restore, with the newest epoch that each of them has.
    """

    incarnation: Annotated[int, Field(ge=1)]
    holder: Holder
    base: Count
    restored_from: str
    lease_ms: Count
    lease_expires_ms: int
    acks: tuple[SinkAck, ...] = ()
    passed_over: tuple[int, ...] = ()
    taken_back: dict[SinkName, Count] = {}


class EpochBrief(Entry):
    """What the log's state remembers of a manifest. `holds`: sinks whose rows are published with a later epoch."""

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
    state_bytes: Count | None = None

    @classmethod
    def of(cls, manifest: Manifest, lease_expires_ms: int) -> EpochBrief:
        """The brief of a manifest whose commit renews the lease."""
        shared = {name: getattr(manifest, name) for name in cls.model_fields if name in Manifest.model_fields}
        state_bytes = sum(file.size_bytes for each in manifest.operators.values() for file in each.files)
        sinks, holds = (
            tuple(sorted(manifest.outputs)),
            tuple(sorted(sink for sink, held in manifest.held.items() if held.files)),
        )
        return cls(**shared, sinks=sinks, holds=holds, lease_expires_ms=lease_expires_ms, state_bytes=state_bytes)


class Heartbeat(Entry):
    """The holder is alive although no epoch was decided."""

    incarnation: Count
    lease_expires_ms: int


class Released(Entry):
    """The incarnation ended by itself: the lease is free at once, unless the run `keeps` it for its next one. `why`: "stopped", or
    what it died of; empty: not known."""

    incarnation: Count
    why: str = ""
    keeps: bool = False


class HandoverAsked(Entry):
    """Somebody wants incarnation `incarnation` to take a final epoch and give its lease up: a standby goes on."""

    incarnation: Count


class UpkeepTurn(Record):
    """Leases to others since this standby had one, and how long its last one was (0: it had none)."""

    since: Count = 0
    ttl_ms: Count = 0


class UpkeepLeased(Entry):
    """The checkpoint lease: standby `holder` does the job's upkeep, and the driver of `incarnation` leaves it alone. The row's
    number is the lease's token.

    `boot`, `reported_ms`: of the holder's own clock, at a moment before the issue; it may work for `budget_ms` of that clock.
    `ttl_ms`: of the driver's. `turns`: everybody's, with this lease.
    """

    incarnation: Count
    holder: StandbyName
    boot: Count
    reported_ms: Count
    budget_ms: Count
    ttl_ms: Count
    turns: dict[StandbyName, UpkeepTurn] = Field(default_factory=dict)


class UpkeepEnded(Entry):
    """Its holder has used lease `token`, or gives it back: `failure` says why.

    What `epoch` says, as incarnation `incarnation` stands on it, is shown by the tables; what is not kept any more is gone; the
    epoch's files were read and compared, and `damage` says what is wrong with them. `clock_ms`: the holder's own.
    """

    token: Count
    incarnation: Count = 0
    epoch: Count = 0
    clock_ms: Count = 0
    failure: str = ""
    damage: str = ""


class Published(Entry):
    """Acks that no later epoch will carry."""

    incarnation: Count
    acks: tuple[SinkAck, ...]


class SavepointRecord(Entry):
    """A name for an epoch; the epoch is kept for ever."""

    name: SavepointName
    epoch: Count


class SavepointDropped(Entry):
    """The name is free again and its epoch an ordinary one."""

    name: SavepointName


class Folded(Entry):
    """What rows before it that were dropped from the log would have said: written when files of the log are replaced.

    `owed`: per sink the epochs up to `last` that it was not known to have. None: an older version wrote the row.
    """

    last: Count
    acked: dict[SinkName, int]
    owed: dict[SinkName, tuple[int, ...]] | None = None


class LossAccepted(Entry):
    """Who runs the job goes on although sinks have epochs, or were written by incarnations, that the log has lost.

    Epochs above `after` up to `epoch` are lost; numbers go on above `epoch` and `incarnation`. `on`: the epoch that they all
    stand on, 0 if that is not known.
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
    | UpkeepLeased
    | UpkeepEnded
    | Published
    | SavepointRecord
    | SavepointDropped
    | Folded
    | LossAccepted
)
