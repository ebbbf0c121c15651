"""A plan as it is printed with `--json` and kept: what goes back, why, and what it was computed from."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

FORMAT = 1

Cause = Literal["target", "orphan", "lost"]
"""Of a step back: the target; it holds what is undone; a table lost what it wrote."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Reason(_Part):
    """One step on the way to a line; a chain of them begins at the target. `who` goes from `left` to `taken`.

    Points are batches of queries and versions of tables; None: as it is now, -1: before all. `through`: table, topic or folder.
    `other` stands at `other_at`. `exact`: false where only times bound what was passed on.
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


class PassedOver(_Part):
    """A point that would have done, and why it cannot be had any more."""

    point: int
    why: str


class SourceEnd(_Part):
    """Where a source of a query goes on. `position` is for people, `offset` the text in the query's own log."""

    source: str
    kind: Literal["delta", "kafka", "files", "other", "unread"]
    position: str


class QueryPlan(_Part):
    """What happens to a query. `batch`: it goes back to the state after it; None: it stays; -1: it begins anew.

    `state_version`: what its operators load, None without any. `newest`: the newest committed batch. `unfinished`: a batch that
    was begun. `digest`: of its logs when the plan was made.
    `kept_in`: the checkpoint folder that holds the files of `batch`, if it is a pinned one; None: they are in `folder`. `point`:
    what that was pinned as.
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
    reasons: list[Reason]
    passed_over: list[PassedOver]
    digest: str
    kept_in: str | None = None
    point: str | None = None


class UndoneVersion(_Part):
    """A version that goes. `batches`: "query batch" of what wrote it; empty for work by hand. `strangers`: applications that wrote
    it and are none of the plan's queries."""

    version: int
    operation: str
    at_ms: int
    batches: list[str]
    strangers: list[str]


class InFlight(_Part):
    """Versions that stay and that a query has not wholly read at its point: it reads them again from the table."""

    reader: str
    first: int
    last: int


class TablePlan(_Part):
    """What happens to a table. `version`: it goes back to it; -1: before its first; the newest if it stays.

    `kept_in`: folders of pinned points that hold data files which the table has lost.
    """

    path: str
    ids: list[str]
    newest: int
    version: int
    stays: bool
    written_by: list[str]
    read_by: list[str]
    undone: list[UndoneVersion]
    in_flight: list[InFlight]
    reasons: list[Reason]
    passed_over: list[PassedOver]
    digest: str
    kept_in: list[str] = []


class FolderPlan(_Part):
    """What happens to the folder of a file sink. `batch`: its log goes back to it, -1: to none; the newest if it stays.

    `files_gone`: how many files go. `digest`: of the log.
    """

    path: str
    newest: int
    batch: int
    stays: bool
    files_gone: int
    written_by: str
    read_by: list[str]
    digest: str


class PublicRange(_Part):
    """Records of undone batches that are public, in one partition: they are somewhere in the offsets `first` to `last`.

    `last`: None where nobody was asked how far the topic goes; `known_last` is the furthest that a reader has come.
    `tight`: `first` is from the broker's time index; else records from before the line may be in the range.
    """

    topic: str
    partition: int
    writer: str
    first: int
    last: int | None
    known_last: int | None
    tight: bool


class TargetPlan(_Part):
    """What was asked for. `most`: milliseconds since 1970, a batch, or a version."""

    kind: Literal["time", "batch", "table", "point"]
    text: str
    most: int
    process: str | None


class Plan(_Part):
    """A consistent line at or before a target, the greatest there is. `notes`: what the plan cannot know, in sentences."""

    format: int = FORMAT
    made_at_ms: int
    target: TargetPlan
    queries: list[QueryPlan]
    tables: list[TablePlan]
    public: list[PublicRange]
    notes: list[str]
    folders: list[FolderPlan] = []
