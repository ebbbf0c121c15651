"""A rewind plan as a typed document, printed with `--json`: steps, reasons, and digests of its inputs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT = 1

Cause = Literal["target", "orphan", "lost"]
"""Cause of a step back.

- target: the target limits the process.
- orphan: the process holds data that is undone.
- lost: a table lost data that the process wrote.
"""


class _PlanPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RewindReason(_PlanPart):
    """One step of the search for a line. Steps form chains that begin at the target.

    - `who`: process that rolls back from point `left` to point `taken`.
    - points: batches of queries or versions of tables. None is the current state, -1 precedes all.
    - `through`: table, topic or folder. `other`: the process at the other end, at point `other_at`.
    - `exact`: false if only times bound the data that passed through.
    """

    who: str
    cause: Cause
    left: int | None
    taken: int | None
    through: str = ""
    other: str = ""
    other_at: int | None = None
    exact: bool = True
    sentence: str


class LostPoint(_PlanPart):
    """A later point that would be consistent, with the reason why it no longer exists."""

    point: int
    why: str


class SourceEnd(_PlanPart):
    """Position of a query's source after the rewind. `position` is text for people."""

    source: str
    kind: Literal["delta", "kafka", "files", "other", "unread"]
    position: str


class QueryPlan(_PlanPart):
    """Effect of a plan on a query.

    - `batch`: the query rolls back to the state after this batch. None: it stays. -1: it starts from the beginning.
    - `state_version`: state version that its operators load, None without operators.
    - `newest`: newest committed batch. `unfinished`: a batch that was started.
    - `digest`: of its logs when the plan was made.
    - `kept_in`: checkpoint folder with the files of a pinned `batch`. None: the files are in `folder`.
    - `point`: pinned point of that batch.
    """

    name: str
    folder: str
    query: str
    newest: int | None
    unfinished: int | None
    batch: int | None
    stays: bool
    undone: list[int]
    sources: list[SourceEnd]
    operators: int
    state_version: int | None
    reasons: list[RewindReason]
    passed_over: list[LostPoint]
    digest: str
    kept_in: str | None = None
    point: str | None = None


class UndoneVersion(_PlanPart):
    """A version that is undone.

    - `batches`: "query batch" of each writer; empty for manual changes.
    - `strangers`: applications that wrote the version and are no query of the plan.
    """

    version: int
    operation: str
    at_ms: int
    batches: list[str]
    strangers: list[str]


class UnreadVersions(_PlanPart):
    """Versions that stay and that a query has not read completely at its point. It reads them again from the table."""

    reader: str
    first: int
    last: int


class TablePlan(_PlanPart):
    """Effect of a plan on a table.

    `version`: version that the table rolls back to; -1 precedes the first; the newest version if the table stays.
    `kept_in`: folders of pinned points with data files that the table has lost.
    """

    path: str
    ids: list[str]
    newest: int
    version: int
    stays: bool
    written_by: list[str]
    read_by: list[str]
    undone: list[UndoneVersion]
    in_flight: list[UnreadVersions]
    reasons: list[RewindReason]
    passed_over: list[LostPoint]
    digest: str
    kept_in: list[str] = []


class FolderPlan(_PlanPart):
    """Effect of a plan on a file sink's folder.

    - `batch`: batch that its log is cut at; -1 for none; the newest batch if the folder stays.
    - `files_gone`: number of files that leave the folder.
    - `digest`: of the log.
    """

    path: str
    newest: int
    batch: int
    stays: bool
    files_gone: int
    written_by: str
    read_by: list[str]
    digest: str


class PublicRange(_PlanPart):
    """Public records of undone batches in one partition: they lie within the offsets `first` to `last`.

    - `last`: None if no broker was asked for the end of the topic. `known_last`: furthest offset that a reader reached.
    - `tight`: `first` comes from the broker's time index. Otherwise the range may hold records from before the line.
    """

    topic: str
    partition: int
    writer: str
    first: int
    last: int | None
    known_last: int | None
    tight: bool


class LeftEpoch(_PlanPart):
    """An epoch of an outbox that a branch leaves.

    - `rows`: number of rows per sink.
    - `shown`: sinks that have the rows. `maybe`: sinks that may have them, because none has acknowledged them.
    """

    epoch: int
    batch: int
    rows: dict[str, int]
    shown: list[str]
    maybe: list[str]


class OutboxSinkPlan(_PlanPart):
    """A sink of an outbox. `table`: its Delta table, which goes back with the query; None for other sinks.

    `applications`, `incarnations`: names of its transactions in that table.
    """

    name: str
    table: str | None
    applications: list[str] = []
    incarnations: list[str] = []


class OutboxPlan(_PlanPart):
    """Effect of a plan on the outbox of a query.

    - `token`, `incarnation`: of the newest row that began, renewed or freed its lease, by which a change is detected.
    - `latest`: newest epoch of its branch. `base`: epoch that it continues from, 0 for its beginning; None: it stays.
    - `left`: epochs that the branch leaves. Rows that sinks without a table have of them come again.
    - `dropped`: newest epoch that the branch leaves, too, and that retention dropped; its rows cannot be listed. 0: none.
    """

    store: str
    name: str
    query: str
    token: int
    incarnation: int
    latest: int
    base: int | None
    left: list[LeftEpoch]
    dropped: int
    sinks: list[OutboxSinkPlan]


class TargetPlan(_PlanPart):
    """The requested target. `most`: milliseconds since 1970, a batch, or a version."""

    kind: Literal["time", "batch", "table", "point"]
    text: str
    most: int
    process: str | None


class RewindPlan(_PlanPart):
    """The greatest consistent line at or before a target. `notes`: sentences about facts that the plan cannot know."""

    format: int = FORMAT
    made_at_ms: int
    target: TargetPlan
    queries: list[QueryPlan] = Field(min_length=1)
    tables: list[TablePlan]
    public: list[PublicRange]
    notes: list[str]
    folders: list[FolderPlan] = []
    outboxes: list[OutboxPlan] = []
