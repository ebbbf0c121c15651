"""Distinct keys of rows, and the positions of keys in a sorted table. Hashes find candidates; key columns decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ckpt.tasks.rows import KEY_HASH, Bools, Int64s, column, numbers, taken

if TYPE_CHECKING:
    from spark_ckpt.tasks.rows import Array


class Keys(NamedTuple):
    """The distinct keys of some rows, in order of first appearance."""

    table: pa.Table
    hashes: Int64s
    row_key: Int64s
    """For each row the position of its key."""
    first_row: Int64s
    """For each key the position of its first row."""

    def __len__(self) -> int:
        """Return the number of distinct keys (not of fields)."""
        return len(self.hashes)


def distinct_keys(rows: pa.Table, names: Sequence[str]) -> Keys:
    """Factorise `rows` by the key columns `names`; nulls equal nulls, NaN equals NaN, 0.0 equals -0.0.

    The keys are normalised as Spark's grouping keys: -0.0 is 0.0, and every NaN is the same NaN. `rows` contains
    `ckpt_key_hash`. Equal keys must have equal hashes; the reverse is not assumed.
    """
    hashes = numbers(rows, KEY_HASH)
    columns = [_normalised(column(rows, name)) for name in names]
    # By the hash alone: one column of numbers, of any number and type of key columns.
    row_key = _encoded(pa.array(hashes))
    first = _first_rows(row_key)
    # collisions are rare: one comparison of all rows with their key's first row finds them
    if not equal_rows(columns, [taken(each, first[row_key]) for each in columns]).all():
        row_key = _refined(row_key, columns)
        first = _first_rows(row_key)
    table = pa.table([taken(each, first) for each in columns], names=list(names))
    return Keys(table, hashes[first], row_key, first)


def _encoded(values: Array) -> Int64s:
    codes = values.dictionary_encode(null_encoding="encode").indices  # a null is a value as any other
    return cast("Int64s", codes.to_numpy(zero_copy_only=False).astype(np.int64))


def _refined(codes: Int64s, columns: Sequence[Array]) -> Int64s:
    """Split codes that stand for more than one key (hash collision), keeping order of first appearance."""
    for each in columns:
        part = _encoded(each)
        # Encoded after each column, so that the products stay below the square of the number of rows.
        codes = _encoded(pa.array(codes * (int(part.max(initial=0)) + 1) + part))
    return codes


def _normalised(values: Array) -> Array:
    """Return -0.0 as 0.0 and every NaN as the same NaN."""
    if not pa.types.is_floating(values.type):
        return values
    numbers = values.to_numpy(zero_copy_only=False) + 0.0  # null is NaN here, and the mask below restores it
    numbers[np.isnan(numbers)] = np.nan
    return pa.array(numbers, values.type, mask=values.is_null().to_numpy(False))


def _first_rows(codes: Int64s) -> Int64s:
    first = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    # Written backwards, so the first row of a code is the one that stays.
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1, dtype=np.int64)
    return first


def equal_rows(left: Sequence[Array], right: Sequence[Array]) -> Bools:
    """Return row by row: are all columns equal, with nulls and NaN equal to themselves?"""
    same = np.ones(len(left[0]) if left else 0, np.bool_)
    for ours, theirs in zip(left, right, strict=True):
        same &= _equal(ours, theirs)
    return same


def _equal(left: Array, right: Array) -> Bools:
    equal = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    if equal.null_count:
        equal = pc.or_(pc.fill_null(equal, False), pc.and_(left.is_null(), right.is_null()))
    return cast("Bools", equal.to_numpy(zero_copy_only=False))


def find(index_hashes: Int64s, index_keys: Sequence[Array], hashes: Int64s, keys: Sequence[Array]) -> Int64s:
    """Return the positions of `keys` in an index sorted by hash, -1 if absent.

    Runs of equal hashes are probed to their end.
    """
    found = np.full(len(hashes), -1, np.int64)
    # The first of equal hashes; collisions follow it.
    at = np.searchsorted(index_hashes, hashes)
    open_ = _still_equal(index_hashes, hashes, at, np.arange(len(hashes)))
    # Ends at the first other hash: each step moves all open rows by one place.
    while len(open_):
        here = at[open_]
        same = equal_rows([taken(each, here) for each in index_keys], [taken(each, open_) for each in keys])
        found[open_[same]] = here[same]
        rest = open_[~same]
        at[rest] += 1
        open_ = _still_equal(index_hashes, hashes, at, rest)
    return found


def _still_equal(index_hashes: Int64s, hashes: Int64s, at: Int64s, rows: Int64s) -> Int64s:
    rows = rows[at[rows] < len(index_hashes)]
    same: Bools = index_hashes[at[rows]] == hashes[rows]
    return rows[same]


class KeyTable:
    """Rows of `StateSchema.table`, one per key, sorted by hash, for look-ups. Immutable."""

    def __init__(self, table: pa.Table, key_names: Sequence[str], timeout_name: str) -> None:
        self.table = table
        self.hashes = numbers(table, KEY_HASH)
        self._names = list(key_names)
        self._keys = [column(table, name) for name in key_names]
        self.timeouts = numbers(table, timeout_name)
        self.earliest_timeout = int(self.timeouts.min(initial=np.iinfo(np.int64).max))  # `NO_TIMEOUT`

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.hashes)

    def find(self, hashes: Int64s, keys: pa.Table) -> Int64s:
        """Return the positions of `keys` (a table of the key columns) in this table, -1 if absent."""
        if not len(self):
            return np.full(len(hashes), -1, np.int64)
        return find(self.hashes, self._keys, hashes, [column(keys, name) for name in keys.column_names])

    def has_a_key_twice(self) -> bool:
        """Return True if two rows have the same key. Only rows of equal hashes are compared."""
        same = self.hashes[1:] == self.hashes[:-1]
        if not same.any():
            return False
        near = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))  # both rows of each pair
        keys = pa.table(
            [pa.array(self.hashes[near]), *(taken(each, near) for each in self._keys)], [KEY_HASH, *self._names]
        )
        return len(distinct_keys(keys, self._names)) < len(near)
