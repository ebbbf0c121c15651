"""Completeness of a log: every commit holds a row, and the newest row vouches for all rows before it.

A row's `history` is a sum modulo 2^256: the seals, as numbers, of all rows in the log when it was appended. Rows that
are folded into other files keep their seals. A commit that drops rows adds a row that sums up the remaining ones. So
the newest row alone reveals any row that is missing, doubled or altered. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

# The range of a SHA-256: so a sum has the form of a seal, 64 hexadecimal digits.
_MODULUS = 1 << 256


class Vouching(Protocol):
    """A row of a log."""

    @property
    def seq(self) -> int:
        """Position in the total order: the table version that the row was committed as."""

    @property
    def kind(self) -> str:
        """Kind of the record. "folded" rows are written when rows are dropped."""

    @property
    def seal(self) -> str:
        """SHA-256 in hexadecimal."""

    @property
    def history(self) -> str:
        """Sum of the seals of all rows before this one."""


def weight(seals: Iterable[str]) -> int:
    """Return the sum that rows with these seals add to a history."""
    # A sum does not depend on the order of rows: each file's part is computed once, and a fold changes nothing. A chain
    # of hashes would be computed again over all rows.
    return sum(int(seal, 16) for seal in seals) % _MODULUS


def history(total: int) -> str:
    """Return a sum of weights in the form of a row's history."""
    return f"{total % _MODULUS:064x}"


def is_whole(newest: Vouching | None, total: int, version: int) -> bool:
    """Return True if rows with the sum of weights `total`, `newest` among them, are the whole log at table version
    `version`.
    """
    # A log that was only created has no row yet. One that lost all of its rows is found by its acknowledgements.
    if newest is None:
        return True
    # Every commit adds a row. A newest row below the version shows that the commits after it were emptied.
    return newest.seq == version and history(total - int(newest.seal, 16)) == newest.history


def missing(rows: Sequence[Vouching], version: int) -> str:
    """Return a sentence for the operator about the rows that a log lacks. `rows`: in order, not empty."""
    # Gaps before a "folded" row are normal: those rows were dropped.
    after = max((row.seq for row in rows if row.kind == "folded"), default=rows[0].seq)
    there = {row.seq for row in rows}
    gone = [seq for seq in range(after + 1, version + 1) if seq not in there]
    # Every number is there and only the sum differs; before a fold gaps are normal, so no row can be named.
    if not gone:
        return f"rows before row {after} of the epoch log are missing, doubled or altered"
    named = f"row {gone[0]} of the epoch log is" if len(gone) == 1 else f"rows {_spans(gone)} of the epoch log are"
    return f"{named} missing: their commits are empty or altered" if len(gone) > 1 else f"{named} missing"


def _spans(numbers: Sequence[int]) -> str:
    """Format numbers as "3, 5 to 9"."""
    starts = [each for each in numbers if each - 1 not in numbers]
    ends = [each for each in numbers if each + 1 not in numbers]
    return ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True))
