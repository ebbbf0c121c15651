"""Direct path from one operator to the next within a task: unchanged rows are packed where the operator emits them.

Otherwise they become Spark rows and blobs again, in two more Python steps. Operations in between may rename, drop and
reorder columns. Computed columns go through Spark (`spark_internals.plans.columns_kept`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_ckpt.tasks.key_hash import key_hash
from spark_ckpt.tasks.packing import pack
from spark_ckpt.tasks.rows import BLOB, KEY_HASH, SHUFFLE_KEY, TAG

PACKED = f"{SHUFFLE_KEY} long, {TAG} long, {BLOB} binary"
"""Columns that the operator's function yields to Spark: packed rows, with a wider shuffle key (see `unsafe`)."""


def unsafe(rows: DataFrame) -> DataFrame:
    """Return rows of `PACKED` as packed rows, through a projection that Spark cannot remove.

    The rows of a stateful Python operator belong to a columnar batch. Spark 4.2's shuffle fails with them unless a
    projection lies in between. Spark removes a projection that changes nothing, so this one casts the shuffle key.
    """
    return rows.withColumn(SHUFFLE_KEY, F.col(SHUFFLE_KEY).cast("int"))


@dataclass(frozen=True, slots=True)
class Onward:
    """Conversion of an operator's output into the next operator's input.

    - `columns`: the next operator's column names, each with its name in this operator's output.
    - `schema`: the next operator's columns as Spark passes them to Python.
    - `keys`, `shuffle_keys`: the next operator's key columns and the shuffle keys of its key groups.
    """

    columns: Mapping[str, str]
    schema: pa.Schema
    keys: tuple[str, ...]
    shuffle_keys: tuple[int, ...]

    def packed(self, outputs: Iterable[pa.Table], group: int) -> Iterator[pd.DataFrame]:
        """Yield the outputs of key group `group` as packed rows.

        A group is called once per batch, so its number makes tags unique.
        """
        rows = (batch for table in outputs for batch in self._rows(table).to_batches())
        for packed in pack(rows, group, self.shuffle_keys):
            yield packed.to_pandas()

    def _rows(self, table: pa.Table) -> pa.Table:
        # Cast as Spark would pass them, so that the hash and the state of a key are the same on both ways.
        rows = table.select(list(self.columns.values())).rename_columns(list(self.columns)).cast(self.schema)
        return rows.append_column(KEY_HASH, pa.array(key_hash(rows, self.keys), pa.int64()))
