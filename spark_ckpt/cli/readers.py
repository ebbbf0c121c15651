"""Readers of a job's edges, for commands: position of each, and the epochs that the store keeps for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_ckpt.cli.output import iso, utc
from spark_ckpt.connector import Json
from spark_ckpt.epochs.log_state import LogState, ReaderEntry
from spark_ckpt.epochs.readers import held_from
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.wording import counted


@dataclass(frozen=True, slots=True)
class ReaderOfEdge:
    """A reader. `held`: the epochs kept for it, oldest first."""

    entry: ReaderEntry
    held: tuple[int, ...]

    @property
    def sentence(self) -> str:
        """Position and kept epochs, as a sentence without a full stop."""
        row, moved = self.entry.row, utc(self.entry.moved_ms)
        keeps = f"holds {counted(len(self.held), 'epoch')} from {self.held[0]} on" if self.held else "holds nothing"
        return f"{row.place} may read again after epoch {row.position.epoch} (said {moved}) and {keeps}"

    @property
    def fields(self) -> dict[str, Json]:
        """The reader for JSON."""
        row = self.entry.row
        return {
            "reader": row.reader,
            "place": row.place,
            "edge": row.edge,
            "epoch": row.position.epoch,
            "moved": iso(self.entry.moved_ms),
            "held_from": self.held[0] if self.held else None,
            "held_epochs": len(self.held),
        }


def readers_of(log: EpochLog, log_state: LogState) -> Iterator[ReaderOfEdge]:
    """Yield the readers of the job's edges, the one that holds the most epochs first."""
    if not log_state.readers:
        return
    # A list of the epochs is what an operator looks at because the newest one is damaged.
    manifest = log_state.newest_readable(log.manifest)
    newest = {} if manifest is None else manifest.rows_so_far
    branch = sorted(brief.epoch for brief in log_state.lineage())
    found = []
    for entry in log_state.readers.values():
        first = held_from(log_state, entry, newest, 0)  # 0: of any age
        found.append(ReaderOfEdge(entry, tuple(epoch for epoch in branch if first and epoch >= first)))
    yield from sorted(found, key=lambda each: -len(each.held))
