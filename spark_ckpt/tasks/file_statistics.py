"""Delta's per-file statistics from a Parquet footer; readers use them to skip files.

An inexact bound makes readers lose rows silently, so a bound that cannot be written exactly is left out.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Sequence

import pyarrow.parquet as pq

_TEXT_CHARS = 32
_EXACT_DIGITS = 15
"""Number of decimal digits that a double always preserves: readers parse the JSON numbers as doubles."""

_UNBOUNDED = {"TIMESTAMP", "TIME"}
"""Types without bounds.

Delta's statistics have millisecond precision only, and Python cannot represent every value of a timestamp column.
"""

Value = bool | int | float | str | datetime.date | decimal.Decimal


def delta_statistics(writer: pq.ParquetWriter, rows: int) -> str:
    """Return the statistics of a file that `writer` has closed, as JSON of the Delta protocol.

    The JSON contains numRecords and, for flat columns, minValues, maxValues and nullCount.
    """
    return footer_statistics(writer.writer.metadata, rows)


def footer_statistics(metadata: pq.FileMetaData, rows: int) -> str:
    """Return the same JSON as `delta_statistics` from the Parquet metadata of a file with `rows` rows."""
    least: dict[str, object] = {}
    most: dict[str, object] = {}
    nulls: dict[str, int] = {}
    for name, chunks in _flat_columns(metadata).items():
        statistics = [chunk.statistics for chunk in chunks]
        # one row group without statistics makes those of the whole column unknown
        if any(each is None or not each.has_null_count for each in statistics):
            continue
        nulls[name] = sum(each.null_count for each in statistics)
        low, high = _bounds(statistics)
        least |= {} if low is None else {name: _json_value(low)}
        most |= {} if high is None else {name: _json_value(high)}
    return json.dumps({"numRecords": rows, "minValues": least, "maxValues": most, "nullCount": nulls})


def _flat_columns(metadata: pq.FileMetaData) -> dict[str, list[pq.ColumnChunkMetaData]]:
    found: dict[str, list[pq.ColumnChunkMetaData]] = {}
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            # a path with a dot is a nested field; Delta's statistics here cover flat columns only
            if "." not in column.path_in_schema:
                found.setdefault(column.path_in_schema, []).append(column)
    return found


def _bounds(statistics: Sequence[pq.Statistics]) -> tuple[Value | None, Value | None]:
    """Return the least and the greatest value of a column; None for a bound that is not exact."""
    # a row group without values has no bounds and does not restrict those of the others
    filled = [each for each in statistics if each.num_values > 0]
    if not filled or any(not each.has_min_max or each.logical_type.type in _UNBOUNDED for each in filled):
        return None, None
    try:
        low, high = min(each.min for each in filled), max(each.max for each in filled)
    except OverflowError:  # a date before year 1 or after 9999
        return None, None
    # Parquet's bounds leave NaN out, and for readers NaN is greater than every number.
    return _exact(low), None if isinstance(high, float) else _exact(high)


def _exact(value: object) -> Value | None:
    if isinstance(value, str):  # a truncated text is no upper bound
        return value if len(value) <= _TEXT_CHARS else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        return value if len(value.as_tuple().digits) <= _EXACT_DIGITS else None
    return value if isinstance(value, bool | int | datetime.date) else None  # bytes have no exact form in JSON


def _json_value(value: Value) -> object:
    if isinstance(value, datetime.date):
        return value.isoformat()
    return float(value) if isinstance(value, decimal.Decimal) else value
