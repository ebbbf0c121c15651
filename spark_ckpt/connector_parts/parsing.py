"""Parsing with a policy for records that do not fit their schema. Native Spark expressions only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.plan.graph import struct_of
from spark_ckpt.spark_internals.column_names import column_of, quoted
from spark_ckpt.tasks.rows import REJECT

OnError = Literal["fail", "drop"]

_CORRUPT = "ckpt_corrupt"
_POSITION = ("topic", "partition", "offset", "_file", "_line")
_SHOWN_CHARS = 200


def parsed_column(
    columns: Sequence[str], column: str, schema: StructType | str, alias: str, format: str, on_error: OnError
) -> Callable[[DataFrame], DataFrame]:
    """Return a DataFrame operation that adds struct column `alias`, and the reject column if the policy is "drop".

    - `columns`: the columns of the frame; those with a record's position are copied into a reject.
    - `column`: the column with the text to parse.
    - `schema`: the expected schema, as a StructType or DDL.
    - `format`: "json" or "csv".
    - `on_error`: "fail" raises `[CKPT_BAD_RECORD]` in the task, "drop" collects the record as a reject.

    Raises `ConfigInvalid` for another policy or format.
    """
    if on_error not in ("fail", "drop"):
        raise ConfigInvalid(f"on_error is 'fail' or 'drop', not '{on_error}'")
    if format not in ("json", "csv"):
        raise ConfigInvalid(f"format is 'json' or 'csv', not '{format}'")
    wanted = struct_of(schema)
    text = column_of(column).cast("string")
    parsed = _parse(text, wanted, format)
    # A null record is no error and stays null.
    bad = text.isNotNull() & (parsed.isNull() | parsed[_CORRUPT].isNotNull())
    good = F.when(text.isNotNull(), F.struct(*(parsed[name].alias(name) for name in wanted.names)))
    reject = _reject([name for name in _POSITION if name in columns], text, format)

    def drop(frame: DataFrame) -> DataFrame:
        # A record may be parsed in several steps: its first reject counts.
        earlier = F.col(REJECT) if REJECT in frame.columns else F.lit(None).cast("string")
        marked = frame.withColumn(REJECT, F.coalesce(earlier, F.when(bad, reject)))
        return marked.withColumn(alias, F.when(F.col(REJECT).isNull(), good))

    def fail(frame: DataFrame) -> DataFrame:
        message = F.concat(F.lit("[CKPT_BAD_RECORD] a record could not be parsed: "), reject)
        return frame.withColumn(alias, F.when(bad, F.raise_error(message)).otherwise(good))

    return drop if on_error == "drop" else fail


def _parse(text: Column, wanted: StructType, format: str) -> Column:
    with_corrupt = StructType([*wanted.fields]).add(_CORRUPT, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    if format == "json":
        return F.from_json(text, with_corrupt, options)
    return F.from_csv(text, _ddl(with_corrupt), options)  # it takes no StructType


def _ddl(schema: StructType) -> str:
    return ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in schema.fields)


def _reject(position: Sequence[str], text: Column, format: str) -> Column:
    where = [F.col(name).alias(name.removeprefix("_")) for name in position]
    reason = F.lit(f"not valid {format} for the declared schema").alias("reason")
    return F.to_json(F.struct(*where, reason, F.substring(text, 1, _SHOWN_CHARS).alias("record")))
