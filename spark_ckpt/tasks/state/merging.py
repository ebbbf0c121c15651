"""Tables of a key group into one with the newest row of every key. They are sorted by hash, so nothing is sorted or hashed again:
the newer one's keys are looked up in the older one, and the rest is merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pyarrow as pa

from spark_ckpt.tasks.rows import DELETE, KEY_HASH, NO_TIMEOUT, OP, TIMEOUT, Int64s, StateSchema, numbers, rows_at
from spark_ckpt.tasks.state.key_index import KeyTable


def key_table(table: pa.Table, schema: StateSchema) -> KeyTable:
    """Wrap a table of `schema.table` that is sorted by hash."""
    return KeyTable(table, schema.key.names, TIMEOUT)


def sorted_table(table: pa.Table, schema: StateSchema) -> KeyTable:
    """Wrap a table of `schema.table` in any order; it is sorted by hash if need be."""
    hashes = numbers(table, KEY_HASH)
    if (hashes[1:] < hashes[:-1]).any():
        table = rows_at(table, np.argsort(hashes, kind="stable"))
    return key_table(table, schema)


def empty(schema: StateSchema) -> KeyTable:
    """A key table without rows."""
    return key_table(schema.table.empty_table(), schema)


def merged(newest_first: Sequence[KeyTable], schema: StateSchema, *, drop_deletes: bool) -> KeyTable:
    """One table with the newest row of every key; none of the tables has a key twice. `drop_deletes` only when nothing older lies
    below.

    A deleted key that still has a timeout stays: the timeout is due although there is no state (as in Spark). Equal hashes of
    different keys stand in the order of the tables.
    """
    whole = reduce(lambda newer, older: _over(newer, older, schema), newest_first)
    return _without_deletes(whole, schema) if drop_deletes else whole


def _over(newer: KeyTable, older: KeyTable, schema: StateSchema) -> KeyTable:
    if not len(newer) or not len(older):
        return newer if len(newer) else older
    table = pa.concat_tables([newer.table, older.table]).combine_chunks()
    return key_table(rows_at(table, _order(newer, _kept(newer, older, schema), older)), schema)


def _kept(newer: KeyTable, older: KeyTable, schema: StateSchema) -> Int64s:
    """Positions in `older` of rows whose keys are not in `newer`."""
    at = older.find(newer.hashes, newer.table.select(schema.key.names))
    stays = np.ones(len(older), np.bool_)
    stays[at[at >= 0]] = False
    return np.flatnonzero(stays)


def _order(newer: KeyTable, kept: Int64s, older: KeyTable) -> Int64s:
    """Positions in both tables, one behind the other, of the rows in the order of their hashes."""
    places = np.searchsorted(older.hashes[kept], newer.hashes) + np.arange(len(newer))
    order = np.empty(len(newer) + len(kept), np.int64)
    of_older = np.ones(len(order), np.bool_)
    of_older[places] = False
    order[places] = np.arange(len(newer))
    order[of_older] = kept + len(newer)
    return order


def _without_deletes(keys: KeyTable, schema: StateSchema) -> KeyTable:
    gone = (numbers(keys.table, OP) == DELETE) & (keys.timeouts == NO_TIMEOUT)
    return key_table(rows_at(keys.table, np.flatnonzero(~gone)), schema) if gone.any() else keys
