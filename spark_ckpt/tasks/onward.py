"""From one operator to the next within the task: rows that nothing happens to in between are packed where they are made.

Else they become rows of Spark and blobs again, in two more Python steps. What lies in between may give columns other names,
leave some out and change their order; anything computed goes through Spark (`spark_internals.plans.columns_kept`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F

from spark_ckpt.tasks.key_hash import key_hash
from spark_ckpt.tasks.packing import pack
from spark_ckpt.tasks.rows import BLOB, KEY_HASH, SHUFFLE_KEY, TAG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PACKED = f"{SHUFFLE_KEY} long, {TAG} long, {BLOB} binary"
"""What the operator's function yields for Spark: packed rows, but for the shuffle key's width (`unsafe`)."""


def unsafe(rows: DataFrame) -> DataFrame:
    """`PACKED` as packed rows. Spark's own shuffle fails with the rows of a stateful Python operator (4.2: they are a columnar
    batch's) unless a projection lies between, and leaves out one that changes nothing."""
    return rows.withColumn(SHUFFLE_KEY, F.col(SHUFFLE_KEY).cast("int"))


@dataclass(frozen=True, slots=True)
class Onward:
    """How an operator's output becomes the next one's input. `columns`: that one's columns, by name, as this one's are called.
    `keys` and `shuffle_keys` (of its key groups) are that one's; `schema`: its columns as Spark gives them to Python.
    """

    columns: Mapping[str, str]
    schema: pa.Schema
    keys: tuple[str, ...]
    shuffle_keys: tuple[int, ...]

    def packed(self, outputs: Iterable[pa.Table], group: int) -> Iterator[pd.DataFrame]:
        """The outputs of key group `group` as packed rows. A group is called once in a batch, so its number makes tags unique."""
        rows = (batch for table in outputs for batch in self._rows(table).to_batches())
        for packed in pack(rows, group, self.shuffle_keys):
            yield packed.to_pandas()

    def _rows(self, table: pa.Table) -> pa.Table:
        rows = table.select(list(self.columns.values())).rename_columns(list(self.columns)).cast(self.schema)
        return rows.append_column(KEY_HASH, pa.array(key_hash(rows, self.keys), pa.int64()))
