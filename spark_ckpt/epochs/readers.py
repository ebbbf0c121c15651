"""Readers of an edge between two jobs: a position on the sender's lineage, and the epochs that retention keeps for it.

Pure. Epoch numbers grow along a lineage. A sender that restored an older epoch has epochs of other branches with
numbers in between. So a position is compared with the lineage first, and by number only on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from itertools import takewhile

from spark_ckpt.epochs.log_state import LogState, ReaderEntry
from spark_ckpt.epochs.records import EpochBrief, Position


class Standing(Enum):
    """Relation of a reader's position to the log of the sender."""

    CURRENT = "every later row is there"
    UNDONE = "the sender restored an epoch before it: its rows are no rows of the sender any more"
    GONE = "retention has deleted rows after it"


def standing(log_state: LogState, position: Position, rows_before: Callable[[int], int]) -> Standing:
    """Return the standing of a position.

    `rows_before`: function from an epoch to the newest one before it on its branch that has rows for the edge.
    """
    nearest = _nearest(log_state, position)
    if _left(nearest, position):
        return Standing.UNDONE
    # The log still has the position's epoch, or has no epoch yet.
    if nearest is None or nearest.epoch <= position.epoch:
        return Standing.CURRENT
    # The log has forgotten the position's epoch. The oldest kept one knows which epoch had rows before it.
    before = rows_before(nearest.epoch)
    # The branch has no rows at the position's number: a restore has left its epoch.
    if before < position.epoch:
        return Standing.UNDONE
    return Standing.CURRENT if before == position.epoch and position.whole else Standing.GONE


def unread(log_state: LogState, edge: str, position: Position) -> list[EpochBrief]:
    """Return the epochs that may have rows for `edge` after a current position, oldest first."""
    first = position.epoch + 1 if position.whole else position.epoch
    # Newest first, so that the walk ends at the position and not at the oldest epoch.
    newer = takewhile(lambda brief: brief.epoch >= first, log_state.lineage())
    return [brief for brief in newer if edge in brief.sinks][::-1]


def read_stamp(log_state: LogState, position: Position) -> int | None:
    """Return the stamp of the newest rows before a current position, 0 for none; None if the log has forgotten it."""
    if not position.epoch:
        return 0
    brief = log_state.by_id.get(position.epoch)
    return None if brief is None else brief.after


def reached_index(log_state: LogState, edge: str, position: Position, has_rows: Callable[[EpochBrief], bool]) -> int:
    """Return the newest index of the sender before which everything is read.

    - `position`: a current position on the edge. A reader that lets in no stamp after its own index has read nothing
      after the returned one, if that is later than its own.
    - `has_rows`: function from an epoch to True if it has rows for `edge`. A position never passes an epoch without.
    """
    following = next(filter(has_rows, unread(log_state, edge, position)), None)
    return log_state.index if following is None else following.after


def held_epochs(log_state: LogState, newest_rows: Mapping[str, int], since_ms: int) -> set[int]:
    """Return the epochs to keep for registered readers.

    - `newest_rows`: per edge the newest epoch of the current branch that has rows for it.
    - `since_ms`: no epoch committed before is kept for them, ms since 1970 UTC.
    """
    firsts = [held_from(log_state, entry, newest_rows, since_ms) for entry in log_state.readers.values()]
    oldest = min(filter(None, firsts), default=None)  # 0: a reader that needs none
    return {brief.epoch for brief in log_state.lineage() if oldest is not None and brief.epoch >= oldest}


def held_from(log_state: LogState, entry: ReaderEntry, newest_rows: Mapping[str, int], since_ms: int) -> int:
    """Return the oldest epoch that is kept for a reader; 0 if none is. Parameters as in `held_epochs`."""
    position, edge = entry.row.position, entry.row.edge
    # Such a reader needs no epoch, and the log may forget the one of its position: `rows_before` of a later epoch still
    # names it.
    nothing_new = position.whole and newest_rows.get(edge, 0) <= position.epoch
    # A reader of undone rows has to restore first: until then no later epoch is of use to it.
    if nothing_new or _left(_nearest(log_state, position), position):
        return 0
    # An epoch past its age is no longer kept for the reader, the younger ones still are.
    young = (brief.epoch for brief in unread(log_state, edge, position) if brief.created_ms > since_ms)
    return next(young, 0)


def _nearest(log_state: LogState, position: Position) -> EpochBrief | None:
    """Return the newest kept epoch of the current branch that is not after the position, else the oldest one."""
    brief = None
    for brief in log_state.lineage():  # newest first: most readers are near the end
        if brief.epoch <= position.epoch:
            break
    return brief


def _left(nearest: EpochBrief | None, position: Position) -> bool:
    """Return True if the sender's current branch is known not to have the position's epoch."""
    if nearest is None:
        return position.epoch > 0  # rows of an epoch were read, and the branch has none
    return nearest.epoch <= position.epoch and not _is_of(position, nearest)


def _is_of(position: Position, brief: EpochBrief) -> bool:
    # A log that lost epochs may give a number twice; the id of the manifest tells them apart.
    return brief.epoch == position.epoch and position.attempt in ("", brief.attempt)
