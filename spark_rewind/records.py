"""Record of a rewind: its changes and its phase.

A typed document, kept next to the checkpoints, printed with `--json`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from spark_ckpt.epochs.records import SparkBatch
from spark_rewind.plan import LeftEpoch, OutboxSinkPlan, PublicRange
from spark_rewind.shifts import Shift
from spark_rewind.stages import Phase

FORMAT = 1
UNDO = "-undo"
"""Ending of the identity of an undo."""


class _RecordPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class QueryChange(_RecordPart):
    """Change of a query.

    - `folder`: place of its checkpoint. `source`: checkpoint that the new one is made of.
    - `batch`: newest batch of the new checkpoint, -1 for an empty one; it may be unfinished.
    - `ends`: by batch and source, new offsets in tables that roll back.
    - `changed`: false for a query that is only fenced meanwhile.
    - `side`: folder of the new checkpoint in preparation. `kept`: later name of the old checkpoint.
    - `fences_before`, `fences_after`: fence files, relative to the folder.
    - `digest_before`, `digest_after`: digests of its logs.
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


class TableChange(_RecordPart):
    """Change of a table: the versions `first` to `last` are written.

    - `first` holds the content of `base`; versions after `base` up to `line` follow again.
    - `newest`: newest version before the change.
    - `transactions`: transaction numbers of applications that are rolled back.
    - `commits`: digests of the commits' texts. `digest_before`: digest of the log.
    - `put_back`: data files that the table has lost, by their path below it, with their place in a pinned point.
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
        """Mapping from old to new versions, for readers."""
        return Shift(self.base, self.line, self.first)


class FolderChange(_RecordPart):
    """Change of a file sink's folder.

    - `newest`: newest batch of its log before the change. `batch`: newest batch of the new log.
    - `source`: log that the new one is made of, in `side`. `kept`: later name of the old log.
    - `files`: paths below the folder; they move into `aside`, without `away` out of it.
    - `digest_before`, `digest_after`: digests of the log.
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


class OutboxChange(_RecordPart):
    """Change of the log of an outbox.

    - `base`: epoch that it continues from, 0 for its beginning. `latest`: newest epoch of its branch before.
    - `token`: row of the lease before. `incarnation`: the one with which the rewind takes the lease.
    - `taken_back`: sinks whose tables go back, each with the newest epoch that its table has then.
    - `acked`: acknowledgements to record first, because tables have these epochs again.
    - `acked_before`: acknowledgements of the sinks in `taken_back` before the change.
    - `moved`: identity of the base's batch in the new checkpoint, if its offsets were rewritten.
    - `left`, `dropped`: see `OutboxPlan`. `rows`: per sink the folder with the rows that come again.
    """

    store: str
    name: str
    query: str
    base: int
    latest: int
    token: int
    incarnation: int
    taken_back: dict[str, int]
    acked: dict[str, int]
    acked_before: dict[str, int]
    left: list[LeftEpoch]
    dropped: int
    sinks: list[OutboxSinkPlan]
    moved: SparkBatch | None = None
    rows: dict[str, str] = {}

    def raised(self, table: str) -> dict[str, int]:
        """Return the transactions of publishers' incarnations in a table: there the rewind fences older publishers."""
        return {each: self.incarnation for sink in self.sinks if sink.table == table for each in sink.incarnations}


class RewindRecord(_RecordPart):
    """A rewind or the undo of one.

    `id`: id of the plan. `public`: records that stay in topics. `notes`: sentences.
    """

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
    outboxes: list[OutboxChange] = []

    def raised(self, table: str) -> dict[str, int]:
        """Return `OutboxChange.raised` of all outboxes."""
        return {app: number for each in self.outboxes for app, number in each.raised(table).items()}

    @property
    def identity(self) -> str:
        """Identity in fences and commits of this rewind or undo."""
        return self.id if self.kind == "apply" else f"{self.id}{UNDO}"

    def at(self, phase: Phase) -> RewindRecord:
        """Return the record at another phase."""
        return self.model_copy(update={"phase": phase})
