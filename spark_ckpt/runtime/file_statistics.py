"""Delta's per-file statistics from a Parquet footer: readers skip files by them."""

from __future__ import annotations

import datetime
import decimal
import json

import pyarrow.parquet as pq

_TEXT_CHARS = 32


def delta_statistics(writer: pq.ParquetWriter, rows: int) -> str:
    """JSON with numRecords and, for flat columns, minValues, maxValues and nullCount (Delta protocol, per-file statistics)."""
    return footer_statistics(writer.writer.metadata, rows)


def footer_statistics(metadata: pq.FileMetaData, rows: int) -> str:
    """The same from a file's metadata."""
    least: dict[str, object] = {}
    most: dict[str, object] = {}
    nulls: dict[str, int] = {}
    for name, columns in _flat_columns(metadata).items():
        statistics = [column.statistics for column in columns]
        if any(each is None or not each.has_null_count for each in statistics):
            continue
        nulls[name] = sum(each.null_count for each in statistics)
        bounded = [each for each in statistics if each.has_min_max]
        if len(bounded) == len(statistics) and all(
            _is_bound(each.min) and _is_bound(each.max) for each in bounded
        ):
            least[name] = _json_value(min(each.min for each in bounded))
            most[name] = _json_value(max(each.max for each in bounded))
    return json.dumps({"numRecords": rows, "minValues": least, "maxValues": most, "nullCount": nulls})


def _flat_columns(metadata: pq.FileMetaData) -> dict[str, list[pq.ColumnChunkMetaData]]:
    found: dict[str, list[pq.ColumnChunkMetaData]] = {}
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            if "." not in column.path_in_schema:
                found.setdefault(column.path_in_schema, []).append(column)
    return found


def _is_bound(value: object) -> bool:
    # A text's upper bound would have to be shortened upwards; timestamps have only milliseconds in Delta's statistics.
    if isinstance(value, str):
        return len(value) <= _TEXT_CHARS
    return isinstance(value, bool | int | float | datetime.date | decimal.Decimal) and not isinstance(
        value, datetime.datetime
    )


def _json_value(value: object) -> object:
    return (
        value.isoformat()
        if isinstance(value, datetime.date)
        else float(value)
        if isinstance(value, decimal.Decimal)
        else value
    )
