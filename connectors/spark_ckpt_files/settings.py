"""Settings of a files source; sent as JSON to Spark's planner process and to tasks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_ckpt.errors import ConfigInvalid, SourceInvalid

Format = Literal["csv", "json", "parquet"]
OnError = Literal["fail", "drop", "keep"]

REJECT_COLUMN = "ckpt_reject"
"""The core's hidden column: JSON with reason, file, line and record for a bad row, else null."""
CORRUPT_COLUMN = "_corrupt_record"
FILE_COLUMN = "_file"
LINE_COLUMN = "_line"
RESERVED_COLUMNS = (REJECT_COLUMN, CORRUPT_COLUMN, FILE_COLUMN, LINE_COLUMN)


@dataclass(frozen=True, slots=True)
class FilesSettings:
    """Settings of a reader, besides the schema. Sizes are bytes. Raises `ConfigInvalid` for wrong values."""

    path: str
    format: Format
    on_error: OnError
    positions: bool
    recursive: bool
    header: bool
    delimiter: str
    quote: str
    null_value: str
    multiline: bool
    files_per_batch: int
    bytes_per_batch: int
    time_zone: str = "UTC"
    """Time zone of timestamps without an offset in text files: an IANA name, or an offset such as +05:30."""
    max_age_ms: int = 7 * 24 * 3600 * 1000
    """Maximal age of a new file, relative to the newest consumed one."""
    ignore_missing: bool = False
    """Leave out missing files instead of refusing."""

    def __post_init__(self) -> None:
        if self.format not in ("csv", "json", "parquet"):
            raise ConfigInvalid(f"format is 'csv', 'json' or 'parquet', not {self.format!r}")
        if self.on_error not in ("fail", "drop", "keep"):
            raise ConfigInvalid(f"on_error is 'fail', 'drop' or 'keep', not {self.on_error!r}")
        if self.files_per_batch < 1 or self.bytes_per_batch < 1:
            raise ConfigInvalid("maxFilesPerTrigger and maxBytesPerTrigger are at least 1")
        if any(len(each) != 1 or not each.isascii() or each in "\0\r\n" for each in (self.delimiter, self.quote)):
            raise ConfigInvalid(
                "delimiter and quote are one ASCII character each, and no line end or NUL",
                hint="for files without quotes give a quote that no field begins with",
            )
        if self.delimiter == self.quote:
            raise ConfigInvalid("delimiter and quote are different characters")

    def to_json(self) -> str:
        """Return the settings as one option of a Spark reader."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> FilesSettings:
        """Return the settings of `to_json` text."""
        return cls(**json.loads(text))

    @property
    def with_positions(self) -> bool:
        """True if rows carry their file and line."""
        return self.positions or self.on_error == "keep"


def age_ms(text: str) -> int:
    """Return a duration such as "7 days" or "1h" in milliseconds. Raises `ConfigInvalid`."""
    import pandas as pd  # driver only: the planner process of each query needs pandas for nothing else

    try:
        duration = pd.Timedelta(text)
    except ValueError as error:
        raise ConfigInvalid(f"maxFileAge is a duration such as '7 days', not {text!r}") from error
    if not duration > pd.Timedelta(0):
        raise ConfigInvalid(f"maxFileAge is longer than nothing, not {text!r}")
    return int(duration.total_seconds() * 1000)


def output_schema(data: StructType, settings: FilesSettings) -> StructType:
    """Return the data columns, then the position, corrupt-record and reject columns that the settings request."""
    # Nullable, even if declared otherwise: a bad record becomes a row of nulls.
    fields = [StructField(field.name, field.dataType, True, field.metadata) for field in data.fields]
    if settings.on_error == "keep":
        fields.append(StructField(CORRUPT_COLUMN, StringType()))
    if settings.with_positions:
        fields += [StructField(FILE_COLUMN, StringType()), StructField(LINE_COLUMN, LongType())]
    if settings.on_error == "drop":
        fields.append(StructField(REJECT_COLUMN, StringType()))
    return StructType(fields)


def declared(schema: str | StructType) -> StructType:
    """Return the data columns as declared. Raises `SourceInvalid` for a text that is no list of columns."""
    from pyspark.errors import PySparkException

    if isinstance(schema, StructType):
        return schema
    if not schema.strip():
        return StructType([])
    try:
        parsed = StructType.fromDDL(schema)
    except PySparkException as error:
        raise SourceInvalid(f"the schema {schema!r} cannot be parsed: {error}") from error
    if not isinstance(parsed, StructType):
        raise SourceInvalid(f"the schema {schema!r} is not a list of columns")
    return parsed


def check_schema(data: StructType, format: Format) -> None:
    """Raise `SourceInvalid` for a schema that no file of this format can be read with."""
    if not data.fields:
        raise SourceInvalid("the schema has no columns", hint="give the columns: schema='id long, name string'")
    taken = sorted(set(data.names) & set(RESERVED_COLUMNS))
    if taken:
        raise SourceInvalid(f"column names are reserved: {', '.join(taken)}", hint="rename the columns")
    repeated = sorted({name for name in data.names if data.names.count(name) > 1})
    if repeated:
        raise SourceInvalid(f"columns are declared twice: {', '.join(repeated)}")
    for field in data.fields:
        # A date in a JSON line is read as text and converted; inside an array or struct that is impossible.
        if not _readable(field.dataType, format) and not (format == "json" and isinstance(field.dataType, DateType)):
            raise SourceInvalid(
                f"column {field.name}: {format} files cannot be read as {field.dataType.simpleString()}",
                hint="read the column as string and convert it with Spark functions",
            )


_SCALARS = (StringType, BooleanType, NumericType, DecimalType, DateType, TimestampType, TimestampNTZType)


def _readable(kind: DataType, format: Format) -> bool:
    if format == "parquet":
        return True
    if format == "json" and isinstance(kind, ArrayType):
        return _readable(kind.elementType, format)
    if format == "json" and isinstance(kind, StructType):
        return all(_readable(field.dataType, format) for field in kind.fields)
    if format == "json" and isinstance(kind, MapType | DateType):
        return False  # Arrow's JSON reader supports neither
    return isinstance(kind, _SCALARS) and not isinstance(kind, BinaryType)
