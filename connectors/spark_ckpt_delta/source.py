"""`DeltaSource`: rows appended to a Delta table, as a source that can restart between any two files.

delta-spark's own streaming source is not used: its offsets hold a version and a file index, but a fresh query accepts
only `startingVersion`, a whole version. Every incarnation of a job is a fresh query. A batch that ended inside a
version could not be continued exactly, and whole versions would leave batches unbounded. Reading the log's add actions
gives the same rows and restarts at every cut. It bounds batches by files and bytes, and needs no jars.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from spark_ckpt.connector import Adopted, Cursor
from spark_ckpt.connector_parts.arguments import checks_arguments
from spark_ckpt.connector_parts.table_id import TableId
from spark_ckpt.errors import ConfigInvalid, SourceInvalid, SourceSilent
from spark_ckpt.place import check_table_path
from spark_ckpt.spark_internals.time_zones import session_zone
from spark_ckpt.storage_errors import one_line
from spark_ckpt_delta.changes import (
    History,
    OnChange,
    Position,
    another_table,
    check_file,
    check_mapping,
    check_readable,
)
from spark_ckpt_delta.log import (
    filesystem,
    identity_of,
    location,
    oldest_readable,
    open_table,
    read_commit,
    read_entry,
    snapshot_files,
)
from spark_ckpt_delta.stream import FORMAT_NAME, DeltaDataSource, DeltaSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_VERSIONS = (1, 3)
_FIELDS = {"sourceVersion", "reservoirId", "reservoirVersion", "index", "isStartingVersion"}
_BEFORE_ALL = (-1, -100)
"""Index for "nothing of the version was read", in offsets of version 1 and 3."""


def position_of_spark(offset: str) -> Position:
    """Return the next file to read, from an offset of Spark's own Delta source.

    Both sources count the files that a version added as new data, in commit order, and order the files of a snapshot by
    time and path. Spark's `index` is the last file that was read, ours is the next one.

    Raises `SourceInvalid` for text that is no such offset, or for an offset at a change of the table's columns.
    """
    found = _fields(offset)
    table, version, index, snapshot = (
        found.get(name) for name in ("reservoirId", "reservoirVersion", "index", "isStartingVersion")
    )
    if found.get("sourceVersion") not in _VERSIONS or set(found) != _FIELDS:
        raise _unreadable(offset, "it is in another version of the format")
    if not isinstance(table, str) or not table or type(version) is not int or version < 0 or type(snapshot) is not bool:
        raise _unreadable(offset, "it is incomplete")
    if type(index) is not int or (index < 0 and index not in _BEFORE_ALL):
        raise _unreadable(offset, "it stands at a change of the table's columns")
    return Position(table, version, 0 if index < 0 else index + 1, snapshot)


def _fields(offset: str) -> dict[str, Any]:
    try:
        found = json.loads(offset)
    except ValueError as error:
        raise _unreadable(offset, "it is not JSON") from error
    if not isinstance(found, dict):
        raise _unreadable(offset, "it is not a JSON object")
    return found


def _unreadable(offset: str, why: str) -> SourceInvalid:
    return SourceInvalid(
        f"not an offset of Spark's Delta source that a job can continue from: {why}",
        offset=offset[:200],
        hint="let the query pass this place first, or start the job's source at a version, in an empty store",
    )


_ELSEWHERE = {
    "files_per_batch": "write maxFilesPerTrigger=",
    "bytes_per_batch": "write maxBytesPerTrigger=",
    "path": "write table=",
    "startingVersion": 'write start= a version, "earliest" or "latest"',
    "startingTimestamp": 'write start= a version, "earliest" or "latest"',
    "ignoreChanges": 'write on_change="skip"',
    "skipChangeCommits": 'write on_change="skip"',
    "ignoreDeletes": 'write on_change="skip"',
}


@checks_arguments(_ELSEWHERE)
class DeltaSource:
    """Read the rows that writers append to a Delta table.

    - `table`: path or URI of the table.
    - `storage_options`: options of the object store, as in deltalake.
    - `start`: "earliest" reads the table's current rows, then the appended ones. "latest" reads only rows appended from now
      on. A version number reads the rows of this version and of later ones.
    - `on_change`: the reaction to a version that deletes or updates rows. "fail" stops the job. "skip" ignores the whole
      version, also rows that it adds, and the versions that `spark-ckpt rewind` commits once more after one that rolls the
      table back. Compaction (`dataChange` false) has no effect.
    - `maxFilesPerTrigger` and `maxBytesPerTrigger`: limits of a micro-batch. The source may split a large version over
      several micro-batches.

    The job reads the columns that the table has when the job starts. If you add a column to the table, restart the job to
    read it.

    A timestamp without a zone in a partition column is local to the session's time zone, as in Spark. deltalake writes
    such values in UTC: read them in a session with the zone UTC. CHAR(n) columns are padded with spaces, as in Spark.

    The source raises an error for columns that column mapping gave other names in the files, for column mapping by id, for
    files with deletion vectors, and for other features that change the meaning of a file. The error names the feature.
    """

    def __init__(
        self,
        table: str,
        *,
        start: int | Literal["earliest", "latest"] = "earliest",
        on_change: OnChange = "fail",
        storage_options: Mapping[str, str] | None = None,
        maxFilesPerTrigger: int = 256,
        maxBytesPerTrigger: int = 128 << 20,
    ) -> None:
        if start not in ("earliest", "latest") and (not isinstance(start, int) or start < 0):
            raise ConfigInvalid(f"start is 'earliest', 'latest' or a version, not {start!r}")
        if on_change not in ("fail", "skip"):
            raise ConfigInvalid(f"on_change is 'fail' or 'skip', not {on_change!r}")
        if maxFilesPerTrigger < 1 or maxBytesPerTrigger < 1:
            raise ConfigInvalid("maxFilesPerTrigger and maxBytesPerTrigger are at least 1")
        check_table_path(table, "a source's table")
        self._settings = DeltaSettings(
            table, on_change, maxFilesPerTrigger, maxBytesPerTrigger, storage_options=dict(storage_options or {})
        )
        self._start = start
        self._table_id = TableId(self._open, self._entry)

    def check(self, spark: SparkSession) -> None:
        """Raise `SourceInvalid` for a missing or unreadable table."""
        opened = self._open()
        check_readable(self._settings.table, opened.protocol().reader_features or (), opened.version())
        check_mapping(self._settings.table, opened.metadata().configuration, json.loads(opened.schema().to_json()))

    def columns(self, spark: SparkSession) -> StructType:
        """Return the columns that the table has now."""
        opened = self._open()
        return self._stream(spark, opened, _end_of(opened)).schema

    def start(self, spark: SparkSession) -> Cursor:
        """Return the configured start as a cursor: a version, the newest snapshot, or the version after the newest.

        Raises `SourceInvalid` for a version that the log lacks, or a snapshot that the source cannot read.
        """
        opened = self._open()
        table, newest = str(opened.metadata().id), opened.version()
        if isinstance(self._start, int):
            self._check_start(self._start, newest)
            return Position(table, self._start).cursor()
        if self._start == "latest":
            # It does not exist yet: the source waits for it, and reads no file that is there now.
            return Position(table, newest + 1).cursor()
        self._check_snapshot(newest)
        return Position(table, newest, snapshot=True).cursor()

    def read(self, spark: SparkSession, cursor: Cursor) -> DataFrame:
        """Return a streaming DataFrame of the files after `cursor`, with the table's columns. Raises `SourceInvalid`, or
        `RowsLost` if the log no longer has everything after it.
        """
        opened = self._open()
        position = Position.of(cursor)
        if str(opened.metadata().id) != position.table:
            raise another_table(self._settings.table)
        # The driver checks: the same error in Spark's planner process would arrive as a failed query with a
        # traceback.
        self._history(opened).require(position, opened.version())
        return self._stream(spark, opened, position)

    def _stream(self, spark: SparkSession, opened: DeltaTable, position: Position) -> DataFrame:
        schema = table_schema(opened)
        # an absolute path: Python workers run in the folder where Java was started
        here = replace(self._settings, table=location(self._settings.table))
        kinds = [schema[name].dataType.typeName() for name in opened.metadata().partition_columns]
        if "timestamp" in kinds:
            here = replace(here, time_zone=session_zone(spark))
        spark.dataSource.register(DeltaDataSource)
        return (
            spark.readStream.format(FORMAT_NAME)
            .options(**here.options())
            .option("schema", schema.json())
            .option("version", opened.version())
            .option("cursor", json.dumps(position.cursor()))
            .load()
        )

    def past_lost(self, spark: SparkSession, cursor: Cursor) -> Cursor:
        """Return the cursor behind commits that log cleanup removed, and files that VACUUM removed."""
        opened = self._open()
        return self._history(opened).past_lost(Position.of(cursor), opened.version()).cursor()

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        """Return the cursor of an offset: Spark's offset of this source is a cursor already."""
        return Position.of(json.loads(offset)).cursor()

    @classmethod
    def adopted(cls, offset: str) -> Adopted:
        """Return the position after the last file that Spark's own Delta source has read. Its offset does not name
        the path.
        """
        position = position_of_spark(offset)
        return Adopted(position.cursor(), {"kind": "delta", "path": "", "table id": position.table})

    def end(self, spark: SparkSession) -> Cursor:
        """Return the position after the newest version."""
        return _end_of(self._open()).cursor()

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        """Return True if all versions before `end` are read."""
        here, there = Position.of(cursor), Position.of(end)
        # A position in a snapshot has files of it left; after the last one it is at the next version.
        return not here.snapshot and (here.version, here.index) >= (there.version, there.index)

    def identity(self, spark: SparkSession) -> Mapping[str, str]:
        """Return the endpoint: path and table id."""
        # `TableId` reads one small file of the log; a handle would read all of it.
        return {**identity_of(self._settings.table, None), "table id": self._table_id.ask()}

    def describe(self) -> Mapping[str, str]:
        """Return kind and path."""
        return {"kind": "delta", "path": self._settings.table}

    def _entry(self, version: int) -> bytes | None:
        return read_entry(filesystem(self._settings.table, self._settings.storage_options), version)

    def _history(self, opened: DeltaTable) -> History:
        settings, fields = self._settings, table_schema(opened).jsonValue()["fields"]
        return History(settings.table, settings.storage_options, settings.on_change, fields, opened.version())

    def _open(self) -> DeltaTable:
        table = self._settings.table
        try:
            return open_table(table, self._settings.storage_options)
        except TableNotFoundError as error:
            raise SourceInvalid(f"{table} is not a Delta table", hint="create the table, then start the job") from error
        except (DeltaError, OSError) as error:
            raise SourceSilent(f"{table} cannot be opened: {one_line(error)}") from error

    def _check_start(self, version: int, newest: int) -> None:
        system = filesystem(self._settings.table, self._settings.storage_options)
        if version > newest + 1 or (version <= newest and read_commit(system, version) is None):
            oldest = oldest_readable(system, newest)
            raise SourceInvalid(
                f"{self._settings.table} has no version {version} in its log; it has {oldest} to {newest}",
                hint=f"start={oldest}, or start='earliest' for all rows as they are now",
            )

    def _check_snapshot(self, newest: int) -> None:
        try:
            files = snapshot_files(self._settings.table, self._settings.storage_options, newest)
        except FileNotFoundError as error:
            # The version was the newest one a moment ago.
            raise SourceSilent(f"{self._settings.table}: {error}", hint="start the job again") from error
        for file in files:
            check_file(self._settings.table, file)


def _end_of(opened: DeltaTable) -> Position:
    return Position(str(opened.metadata().id), opened.version() + 1)


def table_schema(opened: DeltaTable) -> StructType:
    """Return the table's columns as Spark's type; Delta's schema is written in Spark's JSON."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(opened.schema().to_json()))
