"""`FilesSource`: an append-only directory of CSV, JSON-lines or Parquet files as a replayable source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from spark_ckpt.connector import Cursor
from spark_ckpt.errors import ConfigInvalid, SourceInvalid
from spark_ckpt.place import place_of
from spark_ckpt_files.listing import Directory
from spark_ckpt_files.position import Position, consumed_and_fresh, prove
from spark_ckpt_files.reading import check_file
from spark_ckpt_files.settings import Format, OnError, Settings, check_schema, output_schema
from spark_ckpt_files.stream import FORMAT_NAME, FilesDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class FilesSource:
    """A directory that only grows: files are consumed once each, in the order of their names.

    Names of new files must sort after all older ones (a timestamp or a counter with leading zeros); a
    complete file is never changed or removed while a job still needs it. A file that breaks this stops the
    job with its name; nothing is skipped silently. Write under a name that starts with `.` or `_`, or ends in
    `.tmp` or `.inprogress`, then rename.

    `schema`: the data columns, as DDL or StructType. `start`: "earliest" (every file) or "latest" (files
    after now). `on_error`: "fail" stops at the first record that does not fit, naming file and line; "drop"
    hands it to the core, which counts it and keeps it for a side table; "keep" gives a row of nulls with
    `_corrupt_record`, `_file`, `_line`. `positions` adds `_file` and `_line` to every row. `files_per_batch`,
    `bytes_per_batch` bound a micro-batch. CSV: `header` (columns are then found by name), `delimiter`,
    `quote`, `null_value` (unquoted), `multiline` (line ends inside quotes). Timestamps without an offset are
    UTC. `.gz`, `.bz2`, `.zst` and `.lz4` text files are unpacked. Parquet files must hold every column in a
    type that widens to the declared one; on_error does not apply to them.

    Every executor must see the path. Size and name of a consumed file are verified, its content is not.
    """

    def __init__(
        self,
        path: str,
        format: Format,
        schema: str | StructType,
        *,
        start: Literal["earliest", "latest"] = "earliest",
        on_error: OnError = "fail",
        positions: bool = False,
        recursive: bool = False,
        header: bool = True,
        delimiter: str = ",",
        quote: str = '"',
        null_value: str = "",
        multiline: bool = False,
        files_per_batch: int = 256,
        bytes_per_batch: int = 128 << 20,
    ) -> None:
        if start not in ("earliest", "latest"):
            raise ConfigInvalid(f"start is 'earliest' or 'latest', not {start!r}")
        self._settings = Settings(
            path=path,
            format=format,
            on_error=on_error,
            positions=positions,
            recursive=recursive,
            header=header,
            delimiter=delimiter,
            quote=quote,
            null_value=null_value,
            multiline=multiline,
            files_per_batch=files_per_batch,
            bytes_per_batch=bytes_per_batch,
        )
        self._schema = schema
        self._start = start
        self._directory = Directory(path, recursive)

    def check(self, spark: SparkSession) -> None:
        """Raise `SourceInvalid` for a missing directory, a bad schema, or a first file of another kind."""
        from pyspark.sql.pandas.types import to_arrow_schema

        data = self._data_schema()
        check_schema(data, self._settings.format)
        files = self._directory.files()
        if files:
            check_file(self._directory, files[0], self._settings, to_arrow_schema(data, timezone="UTC"))

    def start(self, spark: SparkSession) -> Cursor:
        """The beginning, or everything that is there now."""
        return Position().cursor() if self._start == "earliest" else self.end(spark)

    def read(self, spark: SparkSession, cursor: Cursor) -> DataFrame:
        """A streaming DataFrame of the files after `cursor`; refuses a directory that changed before it."""
        position = Position.of(cursor)
        consumed, _ = consumed_and_fresh(self._directory.files(), position)
        prove(self._settings.path, position, consumed)
        spark.dataSource.register(FilesDataSource)
        return (
            spark.readStream.format(FORMAT_NAME)
            .option("settings", self._settings.to_json())
            .option("schema", output_schema(self._data_schema(), self._settings).json())
            .option("cursor", json.dumps(position.cursor()))
            .load()
        )

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        """Spark's offset of this source is a cursor already."""
        return Position.of(json.loads(offset)).cursor()

    def end(self, spark: SparkSession) -> Cursor:
        """The last complete file that is there now."""
        return Position().after(self._directory.files()).cursor()

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        """Whether all files up to `end` are consumed."""
        return Position.of(cursor).name >= Position.of(end).name

    def identity(self, spark: SparkSession) -> Mapping[str, str]:
        """The folder. What was consumed of it is proven by the cursor."""
        return {"kind": "files", "path": place_of(self._settings.path)}

    def describe(self) -> Mapping[str, str]:
        """Kind, path and format."""
        return {"kind": "files", "path": self._settings.path, "format": self._settings.format}

    def _data_schema(self) -> StructType:
        from pyspark.errors import PySparkException
        from pyspark.sql.types import StructType

        if isinstance(self._schema, StructType):
            return self._schema
        if not self._schema.strip():
            return StructType([])
        try:
            parsed = StructType.fromDDL(self._schema)
        except PySparkException as error:
            raise SourceInvalid(f"the schema {self._schema!r} cannot be parsed: {error}") from error
        if not isinstance(parsed, StructType):
            raise SourceInvalid(f"the schema {self._schema!r} is not a list of columns")
        return parsed
