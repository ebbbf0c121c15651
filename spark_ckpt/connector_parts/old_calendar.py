"""Dates and times in Parquet files that Spark wrote in its calendar of before 3.0: Julian until 1582.

Spark converts them when it reads such a file ("Parquet Files", Spark SQL guide, `datetimeRebaseModeInRead`), Arrow does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    Values: TypeAlias = "pa.Array[Any]"

_FIRST_DAY = -141_427  # 1582-10-15
_FIRST_SECOND = -2_208_988_800  # 1900-01-01: later times are the same in all time zones
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class OldCalendar:
    """The kinds of values that a file has in the old calendar, by its footer."""

    dates: bool
    times: bool

    @classmethod
    def of(cls, file: pq.ParquetFile) -> OldCalendar:
        """Return the kinds by Spark's own rule. Other writers use today's calendar."""
        footer = file.metadata.metadata or {}
        version = footer.get(b"org.apache.spark.version")
        if version is None:
            return cls(dates=False, times=False)
        dates = version < b"3.0.0" or b"org.apache.spark.legacyDateTime" in footer
        # Spark writes all times of a file in one type.
        if any(file.schema.column(number).physical_type == "INT96" for number in range(len(file.schema))):
            return cls(dates, version < b"3.1.0" or b"org.apache.spark.legacyINT96" in footer)
        return cls(dates, dates)

    def misread(self, rows: pa.RecordBatch) -> list[str]:
        """Return the columns with a value that Arrow reads as another day or time than Spark."""
        if not self.dates and not self.times:
            return []
        return [name for name in rows.schema.names if any(map(self._differs, _leaves(rows.column(name))))]

    def _differs(self, values: Values) -> bool:
        kind = values.type
        if self.dates and pa.types.is_date32(kind):
            least, first = pc.min(values.cast(pa.int32())).as_py(), _FIRST_DAY
        elif self.times and pa.types.is_timestamp(kind):
            least, first = pc.min(values.cast(pa.int64())).as_py(), _FIRST_SECOND * _PER_SECOND[kind.unit]
        else:
            return False
        return bool(least is not None and least < first)


def _leaves(values: Values) -> Iterator[Values]:
    if isinstance(values, pa.StructArray):
        children = values.flatten()
    elif isinstance(values, pa.MapArray):
        children = [values.keys, values.items]
    elif isinstance(values, pa.ListArray | pa.LargeListArray):
        children = [values.flatten()]
    else:
        yield values
        return
    for child in children:
        yield from _leaves(child)
