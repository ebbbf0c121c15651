"""What a rewind does, and how far it is: a typed document that is kept beside the checkpoints and printed with `--json`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from spark_rewind.plan import PublicRange
from spark_rewind.shifts import Shift
from spark_rewind.stages import Phase

FORMAT = 1


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class QueryChange(_Part):
    """What happens to a query. `folder`: its checkpoint's place. `source`: the checkpoint that the new one is made of.

    `batch`: the newest of the new one, -1 if it begins anew; it may be unfinished. `ends`: batch: source: an offset in a table
    that goes back, which is another one then. `changed`: false for a query that is only kept from running meanwhile.
    `side`: where the new one is made. `kept`: what the one before is called afterwards. `fences`: files that keep the query from
    running, relative to the folder, before and after. `digest_before`, `digest_after`: of its logs.
    """

    name: str
    query: str
    folder: str
    source: str
    batch: int
    ends: dict[int, dict[str, str]]
    changed: bool
    side: str
    kept: str
    fences_before: list[str]
    fences_after: list[str]
    digest_before: str
    digest_after: str


class TableChange(_Part):
    """What happens to a table: versions `first` to `last` are written. `first` holds what `base` held, and what followed up to
    `line` follows again. `newest`: before. `transactions`: the numbers of applications that are taken back.

    `commits`: digests of the texts. `digest_before`: of the log. `put_back`: data files that the table has lost, by their path
    below it, and where pinned points hold them.
    """

    path: str
    newest: int
    base: int
    line: int
    first: int
    last: int
    files_back: int
    files_gone: int
    transactions: dict[str, int]
    commits: list[str]
    digest_before: str
    put_back: dict[str, str] = {}

    @property
    def shift(self) -> Shift:
        """For readers."""
        return Shift(self.base, self.line, self.first)


class FolderChange(_Part):
    """What happens to a file sink's folder. `newest`: batch of its log before. `batch`: the newest of the new log, which is made of
    the log `source` in `side`; the one before is called `kept` afterwards.

    `files`: by their path below the folder, they are moved into `aside`, or if not `away` out of it. `digest_before`,
    `digest_after`: of the log.
    """

    path: str
    newest: int
    batch: int
    source: str
    side: str
    kept: str
    aside: str
    files: list[str]
    away: bool
    digest_before: str
    digest_after: str


class Record(_Part):
    """One rewind, or one undo of it. `id`: of the plan. `public`: records that nobody takes back. `notes`: sentences."""

    format: int = FORMAT
    id: str
    kind: Literal["apply", "undo"]
    phase: Phase
    target: str
    made_at_ms: int
    queries: list[QueryChange]
    tables: list[TableChange]
    public: list[PublicRange]
    notes: list[str]
    folders: list[FolderChange] = []

    @property
    def identity(self) -> str:
        """What fences and commits of it are known by."""
        return self.id if self.kind == "apply" else f"{self.id}-undo"

    def at(self, phase: Phase) -> Record:
        """The same, further on."""
        return self.model_copy(update={"phase": phase})
