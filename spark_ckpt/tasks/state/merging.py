"""Merges tables of a key group into one with the newest row of every key.

The tables are sorted by hash, so a merge sorts and hashes nothing: it looks up the newer table's keys in the older one
and interleaves the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pyarrow as pa

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.tasks.rows import DELETE, KEY_HASH, NO_TIMEOUT, OP, TIMEOUT, Int64s, StateSchema, numbers, rows_at
from spark_ckpt.tasks.state.key_index import KeyTable


def key_table(table: pa.Table, schema: StateSchema) -> KeyTable:
    """Wrap a table of `schema.table` that is sorted by hash."""
    return KeyTable(table, schema.key.names, TIMEOUT)


def sorted_table(table: pa.Table, schema: StateSchema) -> KeyTable:
    """Wrap a table of `schema.table` in any order; sort it by hash if necessary."""
    hashes = numbers(table, KEY_HASH)
    if (hashes[1:] < hashes[:-1]).any():
        table = rows_at(table, np.argsort(hashes, kind="stable"))
    return key_table(table, schema)


def empty(schema: StateSchema) -> KeyTable:
    """Return a key table without rows."""
    return key_table(schema.table.empty_table(), schema)


def merged(newest_first: Sequence[KeyTable], schema: StateSchema, *, drop_deletes: bool) -> KeyTable:
    """Merge to one table with the newest row of every key. No table may contain a key twice.

    `drop_deletes` removes the rows of deleted keys. Set it only if no older level lies below.

    A deleted key that still has a timeout stays: the timeout is due although there is no state, as in Spark. Different
    keys with equal hashes keep the order of the tables.
    """
    whole = reduce(lambda newer, older: _over(newer, older, schema), newest_first)
    return _without_deletes(whole, schema) if drop_deletes else whole


def _over(newer: KeyTable, older: KeyTable, schema: StateSchema) -> KeyTable:
    if not len(newer) or not len(older):
        return newer if len(newer) else older
    order = _order(newer, _kept(newer, older, schema), older)
    try:
        return key_table(rows_at(pa.concat_tables([newer.table, older.table]).combine_chunks(), order), schema)
    except pa.ArrowInvalid as error:
        # Arrow's offsets into a column of texts, bytes or lists have 32 bits.
        if "offset overflow" not in str(error):
            raise
        raise ConfigInvalid(
            f"a key group of the operator with key {', '.join(schema.key.names)} is too large: a column of its state has more "
            "than 2 GiB of text or bytes, or than 2**31 elements of arrays",
            hint="spark-ckpt rescale STORE OPERATOR --key-groups N, twice as many as now or more; for less state let keys time out",
        ) from error


def _kept(newer: KeyTable, older: KeyTable, schema: StateSchema) -> Int64s:
    """Return the positions in `older` of rows whose keys are not in `newer`."""
    at = older.find(newer.hashes, newer.table.select(schema.key.names))
    stays = np.ones(len(older), np.bool_)
    stays[at[at >= 0]] = False
    return np.flatnonzero(stays)


def _order(newer: KeyTable, kept: Int64s, older: KeyTable) -> Int64s:
    """Return the order of the rows by hash, as positions in the concatenation of both tables."""
    # each newer row goes to the left of older rows with the same hash
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
