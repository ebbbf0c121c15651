"""Compares the staged rows of an epoch with the table at the moment of the commit.

The table may be altered while a job runs. Both engines compare before every attempt to commit. A change after the
comparison is a conflict of metadata or protocol: Delta refuses the commit, and the table is read and compared again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql.types import StructField, StructType

from spark_ckpt.connector import EpochOutput, StagedFile
from spark_ckpt.errors import RowsRefused
from spark_ckpt.spark_internals.arrow_types import spark_schema_of
from spark_ckpt.storage_errors import outage
from spark_ckpt_delta.log import filesystem
from spark_ckpt_delta.rules import (
    append_only,
    expiring_transactions,
    how_to_write_again,
    not_writable,
    nulls_inside,
    same_type,
)

_INCARNATION = re.compile(r".*-i(\d+)-b\d+-[^/]*\.parquet")
_UNDONE = (
    "undo that change of the table (DESCRIBE HISTORY shows it) and start the job again: the rows are staged, and the start "
    "publishes them"
)


class StagedColumns:
    """The columns of staged files. All files that one incarnation has staged have the same columns, so one footer of
    each is read.

    Files with an earlier incarnation in their names may be of two runs of a query with an outbox: `format("outbox")`
    stages before it begins. They are known for one epoch only.
    """

    def __init__(self) -> None:
        self._known: dict[str, StructType] = {}

    def of(self, output: EpochOutput) -> list[StructType]:
        """Return the different schemas of the output's files, without partition columns. Raises a `StoreOutage`."""
        # One file of each incarnation is enough: all of its files were written with one plan.
        found = {_stager(file, output): file for file in output.files}
        try:
            for stager, file in found.items():
                if stager not in self._known:
                    system = filesystem(output.root, output.storage_options)
                    with system.open_input_file(file.path) as opened:
                        self._known[stager] = spark_schema_of(pq.read_schema(opened))
        except OSError as error:
            raise outage(output.root, error) from error
        return [self._known[stager] for stager in found]


def check_fits(
    table: str,
    opened: DeltaTable,
    output: EpochOutput,
    columns: Sequence[StructType],
    partitions: StructType,
    sink: str,
) -> None:
    """Engine deltalake: raise `RowsRefused` unless the files can be committed unchanged.

    `columns`: of the files (`StagedColumns`). `partitions`: the job's types of partition columns, which files omit.
    """
    found = [
        *_layout(opened, output.files),
        *(each for staged in columns for each in _columns(opened, StructType([*staged, *partitions]))),
        *not_writable(opened),
        *(append_only(opened) if output.replaces else ()),
    ]
    if found:
        raise refused(table, found, output, sink, how_to_write_again(table, opened, _UNDONE))


def check_fits_spark(
    table: str,
    opened: DeltaTable,
    output: EpochOutput,
    columns: Sequence[StructType],
    partition_by: Sequence[str],
    sink: str,
    merges: bool,
) -> None:
    """Engine spark: raise `RowsRefused` unless the statement can write every column under its name and type.

    delta-spark lays out the files and keeps the table's rules itself. `partition_by`: the sink's, empty if it names
    none.
    """
    found = [each for staged in columns for each in _columns(opened, staged, not_null=False)]
    now = opened.metadata().partition_columns
    if partition_by and list(partition_by) != list(now):
        found.append(_partitioned(partition_by, now))
    found += expiring_transactions(opened)
    if merges or output.replaces:
        found += append_only(opened)
    if found:
        raise refused(table, found, output, sink)


def refused(table: str, found: Sequence[str], output: EpochOutput, sink: str, hint: str = _UNDONE) -> RowsRefused:
    """Return the error that lists the differences between the table and the rows."""
    # Files of several incarnations may differ from the table in the same way.
    said = "; ".join(dict.fromkeys(found))
    return RowsRefused(
        f"{table} cannot take the rows of epoch {output.epoch}, nothing of it was published: {said}",
        hint=hint,
        sink=sink,
        epoch=output.epoch,
        table=table,
    )


def _stager(file: StagedFile, output: EpochOutput) -> str:
    found = _INCARNATION.fullmatch(file.path)
    if not found:
        return file.path
    return found[1] if int(found[1]) == output.incarnation else f"{found[1]} in {output.epoch}"


def _layout(opened: DeltaTable, files: Sequence[StagedFile]) -> Iterator[str]:
    now = opened.metadata().partition_columns
    laid_out = {tuple(file.partition_values) for file in files}
    # In any order: a commit names the values of a file, and its folder means nothing.
    yield from (_partitioned(each, now) for each in sorted(laid_out) if sorted(each) != sorted(now))


def _partitioned(staged: Sequence[str], now: Sequence[str]) -> str:
    return f"it is partitioned by {', '.join(now) or 'nothing'}, the rows by {', '.join(staged) or 'nothing'}"


def _columns(opened: DeltaTable, staged: StructType, not_null: bool = True) -> Iterator[str]:
    table = _by_name(StructType.fromJson(json.loads(opened.schema().to_json())))
    for field in staged:
        there = table.get(field.name)
        if there is None:
            yield f"it has no column {field.name}"
        elif not same_type(field.dataType, there.dataType):
            was, now = field.dataType.simpleString(), there.dataType.simpleString()
            yield f"column {field.name} is {was} in the rows, {now} in the table"
        elif not_null and field.nullable and not there.nullable:
            yield f"column {field.name} must not be null now"
        elif not_null and nulls_inside(field.dataType, there.dataType):
            yield f"values inside column {field.name} must not be null now"
    # A nullable column that a file lacks reads as null from it.
    missing = table.keys() - set(staged.names) if not_null else set[str]()
    yield from (
        f"the rows lack column {name}, which must not be null" for name in sorted(missing) if not table[name].nullable
    )


def _by_name(schema: StructType) -> Mapping[str, StructField]:
    return {field.name: field for field in schema}
