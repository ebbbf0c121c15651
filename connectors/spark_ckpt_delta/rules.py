"""Conditions on a table under which files written by tasks can be committed to it unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deltalake import DeltaTable
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from spark_ckpt.errors import SinkInvalid
from spark_ckpt.spark_internals.arrow_types import is_collated
from spark_ckpt.spark_internals.column_names import quoted
from spark_ckpt_delta.log import BOUNDED

_OTHER_ENGINE = 'use DeltaSink(..., engine="spark")'
_WRITABLE_FEATURES = {
    "appendOnly",
    "invariants",
    "checkConstraints",
    "changeDataFeed",
    "generatedColumns",
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "v2Checkpoint",
    "variantType",
}
"""Features that deltalake 1.6.6 can append to; those that an append must honour are refused below."""
_REMOVABLE_FEATURES = ("inCommitTimestamp", "rowTracking", "domainMetadata")
"""Features that delta-spark 4.0 drops at once, in an order in which it drops them. Others cannot be dropped, such as
`clustering`, or leave `checkpointProtection` for a day. RESTORE removes none.
"""
_LEGACY_IDENTITY_WRITER = 6
_RETENTION = "delta.setTransactionRetentionDuration"
"""With this property, delta-spark's checkpoints omit older transactions and those without a time, such as
deltalake's.
"""
_APPEND_ONLY = "delta.appendOnly"
_GENERATION, _IDENTITY = "delta.generationExpression", "delta.identity.start"
_ALLOWS_GIVEN = "delta.identity.allowExplicitInsert"
_PER_COLUMN = {
    "delta.invariants": "an invariant",
    _GENERATION: "a generation expression",
    _IDENTITY: "identity values",
    BOUNDED: "a bounded length (char or varchar)",
}
_FIXED_ZONE = re.compile(r"(Etc/)?(Z|Zulu|UCT|UTC|UT|GMT)|(Etc/)?(UTC|UT|GMT)?[+-]\d{1,2}(:?\d\d){0,2}")
# Spark writes no Parquet column with such a name, and delta-spark only a mapped one.
_NOT_FOR_DELTA_SPARK = re.compile(r"[ ,;{}()\n\t=]")
_PARTITION_TYPES = {"string", "byte", "short", "integer", "long", "boolean", "date"}
"""Types that every writer spells alike in a folder name; timestamps differ."""


def check_writable(table: str, opened: DeltaTable) -> None:
    """Raise `SinkInvalid` for the first feature of the table that staged Parquet files cannot honour."""
    for problem in _problems(opened):
        advice = how_to_write_again(table, opened, "undo that change of the table and start the job again")
        hint = f"{_OTHER_ENGINE}; a sink that has published keeps its engine: {advice}"
        raise SinkInvalid(f"{table} has {problem}, which deltalake cannot write", hint=hint, table=table)


def check_markers_stay(table: str, opened: DeltaTable) -> None:
    """Raise `SinkInvalid` if the table forgets application transactions: the sink's marker is one."""
    for problem in expiring_transactions(opened):
        path = table.replace("`", "``")
        raise SinkInvalid(
            f"{table}: {problem}",
            hint=f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('{_RETENTION}')",
            table=table,
        )


def expiring_transactions(opened: DeltaTable) -> list[str]:
    """Return the property by which Delta removes application transactions, as text; empty if it is not set."""
    duration = opened.metadata().configuration.get(_RETENTION)
    return (
        []
        if duration is None
        else [f"{_RETENTION} = {duration} removes the sink's marker, so that rows could come twice"]
    )


def not_writable(opened: DeltaTable) -> list[str]:
    """Return everything in the table that deltalake cannot honour, as texts."""
    return [
        *(f"it has {each}, which deltalake cannot write" for each in _problems(opened)),
        *expiring_transactions(opened),
    ]


def how_to_write_again(table: str, opened: DeltaTable, otherwise: str) -> str:
    """Return recovery advice for a sink of engine deltalake. `otherwise`: the advice if an undone change is enough.

    It is not enough for a table feature.
    """
    kept = list(_protocol_problems(opened))
    if not kept:
        return otherwise
    path = table.replace("`", "``")
    features = _features(opened)
    if features and features <= set(_REMOVABLE_FEATURES):
        drops = [f"ALTER TABLE delta.`{path}` DROP FEATURE {each}" for each in _REMOVABLE_FEATURES if each in features]
        return f"start the job again after {'; '.join(drops)}"
    copy = f"CREATE TABLE delta.`NEW` USING delta AS SELECT * FROM delta.`{path}`"  # noqa: S608 - an operator runs it
    return (
        f"RESTORE keeps {', '.join(kept)}: give the sink another table, such as a copy ({copy}), and confirm it with "
        "accept_new_sink"
    )


def _features(opened: DeltaTable) -> set[str]:
    return set(opened.protocol().writer_features or ()) - _WRITABLE_FEATURES


def _protocol_problems(opened: DeltaTable) -> Iterator[str]:
    yield from (f"table feature {feature}" for feature in sorted(_features(opened)))
    protocol = opened.protocol()
    # Protocols before table features list none: there the version alone says what a table may have.
    if protocol.writer_features is None and protocol.min_writer_version >= _LEGACY_IDENTITY_WRITER:
        yield f"writer version {protocol.min_writer_version} (identity columns)"


def _problems(opened: DeltaTable) -> Iterator[str]:
    yield from _protocol_problems(opened)
    configuration = opened.metadata().configuration
    # Tasks write columns under their own names. Readers of such a table look for physical names or ids.
    if (configuration.get("delta.columnMapping.mode") or "none") != "none":
        yield f"column mapping ({configuration['delta.columnMapping.mode']})"
    for name in sorted(configuration):
        # A commit of finished files evaluates no constraint.
        if name.startswith("delta.constraints."):
            yield f"check constraint {name.removeprefix('delta.constraints.')}"
    for field in json.loads(opened.schema().to_json())["fields"]:
        for key, what in _PER_COLUMN.items():
            if key in field.get("metadata", {}):
                yield f"{what} on column {field['name']}"


def check_names(table: str, schema: StructType) -> None:
    """Raise `SinkInvalid` for columns that no Delta table can have: an empty name, or names that differ in case
    only.
    """
    names = [name.lower() for name in schema.names]
    repeated = [name for name in schema.names if names.count(name.lower()) > 1]
    if repeated or "" in names:
        what = f"columns {', '.join(repeated)} have one name" if repeated else "a column has no name"
        raise SinkInvalid(
            f"{table}: {what}",
            hint="rename the columns; Delta does not tell upper case from lower case",
            table=table,
        )


def check_names_for_delta_spark(table: str, schema: StructType) -> None:
    """Raise `SinkInvalid` for column names with which delta-spark creates no table."""
    refused = [name for name in _every_name(schema) if _NOT_FOR_DELTA_SPARK.search(name)]
    if refused:
        raise SinkInvalid(
            f"{table} does not exist, and delta-spark creates no table with columns {', '.join(map(repr, refused))}",
            hint="rename the columns; or create the table first, with the property delta.columnMapping.mode = name",
            table=table,
        )


def check_collations(table: str, schema: StructType) -> None:
    """Raise `SinkInvalid` for text with a collation: the tasks' files have none, and a table has to have their columns."""
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if any(is_collated(each) for each in _every_type(field.dataType)):
            plain = re.sub(" collate [A-Za-z0-9_]+", "", kind)
            raise SinkInvalid(
                f"{table}: column {field.name} is {kind}, and the staged rows have text without a collation",
                hint=f"write plain text: withColumn({field.name!r}, F.expr({f'cast({quoted(field.name)} as {plain})'!r}))",
                table=table,
            )


def check_structs(table: str, schema: StructType) -> None:
    """Raise `SinkInvalid` for a struct without fields, as of a Protobuf message that has none: Parquet holds no such column."""
    for field in schema.fields:
        if any(isinstance(each, StructType) and not each.fields for each in _every_type(field.dataType)):
            raise SinkInvalid(
                f"{table}: column {field.name} is {field.dataType.simpleString()}, and Parquet has no struct without fields",
                hint=f"leave it out: drop({field.name!r}), or select the fields that it has besides",
                table=table,
            )


def _every_name(schema: StructType) -> Iterator[str]:
    return (name for kind in _every_type(schema) if isinstance(kind, StructType) for name in kind.names)


def _every_type(kind: DataType) -> Iterator[DataType]:
    yield kind
    match kind:
        case StructType():
            for field in kind.fields:
                yield from _every_type(field.dataType)
        case ArrayType():
            yield from _every_type(kind.elementType)
        case MapType():
            yield from _every_type(kind.keyType)
            yield from _every_type(kind.valueType)


def check_partitioning(table: str, found: Sequence[str], wanted: Sequence[str] | None) -> None:
    """Raise `SinkInvalid` if the table's partition columns differ from the wanted ones."""
    if wanted is not None and tuple(found) != tuple(wanted):
        raise SinkInvalid(
            f"{table} is partitioned by {', '.join(found) or 'nothing'}, the sink says "
            f"{', '.join(wanted) or 'nothing'}",
            hint="leave partition_by out, or write to another table",
        )


def check_partition_types(table: str, partition_by: Sequence[str], schema: StructType) -> None:
    """Raise `SinkInvalid` if tasks cannot lay out files by these columns."""
    types = {field.name: field.dataType.typeName() for field in schema.fields}
    for name in partition_by:
        if types[name] not in _PARTITION_TYPES:
            raise SinkInvalid(
                f"{table} is partitioned by {name}, a {types[name]}",
                hint=f"partition by one of {', '.join(sorted(_PARTITION_TYPES))}, or {_OTHER_ENGINE}",
            )
    if len(partition_by) == len(types):
        raise SinkInvalid(f"{table}: every column is a partition column", hint="keep at least one data column")


def check_zone(table: str, partition_by: Sequence[str], schema: StructType, zone: str) -> None:
    """Raise `SinkInvalid` if delta-spark would write a partition's instant as an ambiguous local time."""
    times = [name for name in partition_by if name in schema.names and isinstance(schema[name].dataType, TimestampType)]
    # Only zones without a change of clocks: there a local time names one instant.
    if times and not _FIXED_ZONE.fullmatch(zone):
        raise SinkInvalid(
            f"{table} is partitioned by {times[0]}, a timestamp, and delta-spark writes its value in local time of {zone}: "
            "an hour that occurs twice a year would be stored as the first one",
            hint='build the session with conf={"spark.sql.session.timeZone": "UTC"}, or partition by a date',
            table=table,
            zone=zone,
        )


def append_only(opened: DeltaTable) -> list[str]:
    """Return the property by which the table refuses to lose or change rows, as text; empty if it is not set."""
    return (
        # Delta takes TRUE and True as well.
        [f"{_APPEND_ONLY} = true forbids to replace rows"]
        if str(opened.metadata().configuration.get(_APPEND_ONLY)).lower() == "true"
        else []
    )


def check_merges(table: str, opened: DeltaTable, keys: Sequence[str]) -> None:
    """Raise `SinkInvalid` if the table refuses every merge."""
    for field in json.loads(opened.schema().to_json())["fields"]:
        kind = field.get("metadata", {}).get(BOUNDED, "")
        if field["name"] in keys and kind.startswith("char"):
            raise SinkInvalid(
                f"{table}: key {field['name']} is {kind}, which delta-spark cannot merge by",
                hint="give the sink a table whose keys are STRING or VARCHAR; or leave keys out",
                table=table,
            )
    for problem in append_only(opened):
        path = table.replace("`", "``")
        raise SinkInvalid(
            f"{table}: {problem}, and a merge replaces them",
            hint=f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{_APPEND_ONLY}' = 'false'); or leave keys out",
            table=table,
        )


def check_schema(table: str, job: StructType, found: Mapping[str, Any], generates: bool) -> None:
    """Raise `SinkInvalid`, with a table of the differences, unless both have the same columns of the same types.

    `found` is the table's schema in Spark's JSON form. A NOT NULL column of the table needs a non-nullable one of the
    job. `generates`: the engine fills generated and identity columns that the job lacks.
    """
    wanted = {field.name: field for field in job.fields}
    there = {field.name: field for field in StructType.fromJson(dict(found)).fields}
    # `is False`: a column without identity has no such key.
    always = [name for name in wanted if name in there and there[name].metadata.get(_ALLOWS_GIVEN) is False]
    if always:
        raise SinkInvalid(
            f"{table}: only the table gives values to {', '.join(always)} (GENERATED ALWAYS AS IDENTITY)",
            hint="drop the columns from the job's rows",
            table=table,
        )
    rows = [("column", "job", "table")]
    for name in [*wanted, *(name for name in there if name not in wanted)]:
        ours, theirs = wanted.get(name), there.get(name)
        if ours is None and theirs is not None and generates and {_GENERATION, _IDENTITY} & theirs.metadata.keys():
            continue
        if ours is None or theirs is None or not same_type(ours.dataType, theirs.dataType):
            rows.append((name, _shown(ours), _shown(theirs)))
        elif ours.nullable and not theirs.nullable:
            rows.append((name, f"{_shown(ours)}, may be null", f"{_shown(theirs)} NOT NULL"))
        elif not generates and nulls_inside(ours.dataType, theirs.dataType):
            # delta-spark looks for them at each write
            rows.append((name, f"{_shown(ours)}, may be null inside", f"{_shown(theirs)}, NOT NULL inside"))
    if len(rows) > 1:
        raise SinkInvalid(
            f"the rows do not fit {table}:\n{_aligned(rows)}",
            hint="select, rename or cast the columns, or alter the table",
        )


def same_type(left: DataType, right: DataType) -> bool:
    """Return True if two types are equal apart from the nullability of inner values."""
    # The short text leaves out nullability, which `json` has.
    return left.simpleString() == right.simpleString()


def nulls_inside(ours: DataType, theirs: DataType) -> bool:
    """Return True if an inner value of `ours` may be null where `theirs`, of the same type, forbids null."""
    match ours, theirs:
        case StructType(), StructType():
            pairs = list(zip(ours.fields, theirs.fields, strict=True))
            inner = [(mine.dataType, yours.dataType) for mine, yours in pairs]
            found = any(mine.nullable and not yours.nullable for mine, yours in pairs)
        case ArrayType(), ArrayType():
            inner = [(ours.elementType, theirs.elementType)]
            found = ours.containsNull and not theirs.containsNull
        case MapType(), MapType():
            inner = [(ours.keyType, theirs.keyType), (ours.valueType, theirs.valueType)]
            found = ours.valueContainsNull and not theirs.valueContainsNull
        case _:
            return False
    return found or any(nulls_inside(*each) for each in inner)


def _shown(field: Any) -> str:
    return "-" if field is None else str(field.dataType.simpleString())


def _aligned(rows: Sequence[tuple[str, str, str]]) -> str:
    widths = [max(len(row[index]) for row in rows) for index in range(3)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"    {line.rstrip()}" for line in lines)
