"""The id of a Delta table for frequent queries: the table is opened once, later queries read one small file of its log."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from deltalake import DeltaTable


class TableId:
    """The id that a table was created with.

    - `opened`: opens the table.
    - `entry`: returns the bytes of a version's log entry, or None without one.

    No two commits have the same bytes. While the newest commit of the last opening is unchanged, the table is the same.
    """

    def __init__(self, opened: Callable[[], DeltaTable], entry: Callable[[int], bytes | None]) -> None:
        self._opened = opened
        self._entry = entry
        self._known: tuple[int, bytes, str] | None = None

    def ask(self) -> str:
        """Return the current id. Raises the errors of opening."""
        known = self._known
        # One small read replaces an opening of the table, which takes longer with every commit since its checkpoint.
        if known is not None and self._digest(known[0]) == known[1]:
            return known[2]
        before = self._opened()
        table, version = str(before.metadata().id), before.version()
        digest = self._digest(version)
        # A table id is never used twice. If two openings have one id, the commit between them was read of this table.
        same = digest is not None and str(self._opened().metadata().id) == table
        self._known = (version, digest, table) if same and digest is not None else None
        return table

    def _digest(self, version: int) -> bytes | None:
        entry = self._entry(version)
        return None if entry is None else sha256(entry).digest()
