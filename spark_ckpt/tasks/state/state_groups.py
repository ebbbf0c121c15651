"""Imported state as a job's first state files: a full file per task that has keys. Runs in tasks.

Rows come sorted by key group, then by hash, so a task holds one group at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ckpt.errors import AdoptionRefused, EpochDamaged
from spark_ckpt.tasks.rows import (
    DELETE,
    KEY_GROUP,
    KEY_HASH,
    NO_TIMEOUT,
    OP,
    TIMEOUT,
    StateSchema,
    conform,
    numbers,
    rows_at,
)
from spark_ckpt.tasks.state.key_index import distinct_keys
from spark_ckpt.tasks.state.levels import to_stored
from spark_ckpt.tasks.state.merging import key_table
from spark_ckpt.tasks.state.shared_file import SharedFile
from spark_ckpt.wording import counted

if TYPE_CHECKING:
    from spark_ckpt.store.location import Location

WRITTEN = "file string, timed long, stateless long"
"""Columns reported for each file: a `StateFile` as JSON, the number of keys with a timeout, and with only a timeout."""


@dataclass(frozen=True, slots=True)
class GroupWriter:
    """Everything a task needs.

    `location` is that of the operator's state; `key_groups` is the operator's number of groups.
    """

    operator: str
    schema: StateSchema
    key_groups: int
    location: Location
    epoch: int
    incarnation: int

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows' key groups into one file; yield a row of `WRITTEN` for it. It is durable by then.

        Rows have the columns of `StateSchema.table` and the key group; a null timeout means none.

        - Raises `AdoptionRefused` for two keys that are one key in a job.
        - Raises `EpochDamaged` for a row in a key group that its hash does not belong to.
        """
        file: SharedFile | None = None
        timed = stateless = 0
        for group, rows in _groups(batches):
            table = self._table(group, rows)
            file = file or SharedFile(self.location, self.incarnation, self.epoch, group, "full")
            file.add(group, to_stored(key_table(table, self.schema), self.schema, group, self.epoch))
            timed += int((numbers(table, TIMEOUT) != NO_TIMEOUT).sum())
            stateless += int((numbers(table, OP) == DELETE).sum())
        if file is not None:
            written = file.finish().model_dump_json()
            yield pa.RecordBatch.from_pydict({"file": [written], "timed": [timed], "stateless": [stateless]})

    def _table(self, group: int, rows: pa.Table) -> pa.Table:
        """Return the group's rows sorted by hash, each key once."""
        timeouts = pc.fill_null(rows.column(TIMEOUT), pa.scalar(NO_TIMEOUT, pa.int64()))
        at = rows.column_names.index(TIMEOUT)
        table = conform(rows.set_column(at, TIMEOUT, timeouts), self.schema.table).combine_chunks()
        hashes = numbers(table, KEY_HASH)
        # Such a key would never be found: look-ups go to the group of its hash.
        if (np.mod(hashes, self.key_groups) != group).any():
            raise EpochDamaged(f"a key of operator '{self.operator}' came to group {group}, which it is not of")
        table = rows_at(table, np.argsort(hashes, kind="stable"))
        twice = table.num_rows - len(distinct_keys(table, self.schema.key.names))
        if twice:
            raise AdoptionRefused(
                f"operator '{self.operator}': {counted(twice, 'key')} of the query {'is' if twice == 1 else 'are'} another one's "
                "equal in a job, where 0.0 and -0.0 are one key, and all NaN are",
                hint="group by another column, or by a text made of it: such a query has to start as a job without its "
                "state; nothing was changed",
            )
        return table


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each group, which are contiguous."""
    parts = chain.from_iterable(map(_parts, batches))
    for group, of_group in groupby(parts, key=itemgetter(0)):
        yield group, pa.Table.from_batches([part for _, part in of_group])


def _parts(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    groups = batch.column(KEY_GROUP).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
    ends = np.r_[starts[1:], len(groups)]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield int(groups[start]), batch.slice(start, end - start)
