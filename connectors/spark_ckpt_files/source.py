"""`FilesSource`: a directory of CSV, JSON-lines or Parquet files as a replayable source."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from spark_ckpt.connector import Cursor, Folder
from spark_ckpt.connector_parts.arguments import checks_arguments
from spark_ckpt.errors import ConfigInvalid, SourceInvalid
from spark_ckpt.place import place_of
from spark_ckpt.spark_internals.time_zones import session_zone
from spark_ckpt.temporary_folder import TemporaryFolder
from spark_ckpt_files.cleaning import Cleaner, Cleaning, CleanSource
from spark_ckpt_files.ledger import Consumed, FileLedger, encoded
from spark_ckpt_files.listing import DataFile, Directory, rewritten
from spark_ckpt_files.offsets import Offset, newest_of
from spark_ckpt_files.reading import check_file
from spark_ckpt_files.replay import check_readable, memory_damage
from spark_ckpt_files.settings import FilesSettings, Format, OnError, age_ms, check_schema, declared, output_schema
from spark_ckpt_files.stream import FORMAT_NAME, FilesDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)
FORGETTING_PAYS = 10_000
_NAMED_MAX = 5


_ELSEWHERE = {
    "files_per_batch": "write maxFilesPerTrigger=",
    "bytes_per_batch": "write maxBytesPerTrigger=",
    "recursive": "write recursiveFileLookup=True",
    "latestFirst": 'a job reads files in order of time; start="latest" leaves out those that are there',
    "sep": "write delimiter=",
    "maxFileSize": "write maxBytesPerTrigger=",
    "mode": 'write on_error="fail", "drop" or "keep"',
    "columnNameOfCorruptRecord": 'write on_error="keep": the column is _corrupt_record',
    "inferSchema": "a job keeps its columns: schema=spark.read.json(path).schema declares those that Spark infers now",
    "mergeSchema": "a job reads the columns that it declares: give schema all of them",
    "basePath": "partition columns from folders are not supported: docs/porting.md",
    "ignoreCorruptFiles": 'a file that cannot be read stops the job; for single records write on_error="drop"',
    "timeZone": "set the session's spark.sql.session.timeZone",
    **dict.fromkeys(
        ("dateFormat", "timestampFormat", "timestampNTZFormat"),
        'declare the column as string, and parse it: withColumn("at", F.to_timestamp("at", pattern))',
    ),
}


@checks_arguments(_ELSEWHERE)
class FilesSource:
    """Read the files of a directory. The job consumes each file once, in Spark's order: by modification time, then by name.

    A consumed file must not change, and its name must not be used again. So write each file under a name that starts with
    `.` or `_`, or ends in `.tmp` or `.inprogress`, and rename it when it is complete. You may remove a file when its epoch
    is published. The job's store lists the consumed files.

    - `schema`: the data columns, as DDL or StructType.
    - `start`: "earliest" reads every file, "latest" only files that arrive from now on.
    - `on_error`: the reaction to a record that does not fit the schema. "fail" stops the job; the error has file and line.
      "drop" counts the record and writes it to the side table of `rejectsTo`, if there is one. "keep" returns a row of
      nulls with `_corrupt_record`, `_file`, `_line`.
    - `positions`: adds the columns `_file` and `_line` to every row.
    - `maxFilesPerTrigger`, `maxBytesPerTrigger`: limits of a micro-batch.
    - `maxFileAge`: the time for which the job remembers a consumed file that no longer exists, measured back from the
      newest consumed file. If a file appears that is older than this, the job cannot know if it has read the file. The job
      then stops, and the error names the file, so no file is skipped silently.
    - `cleanSource`: "archive" moves consumed files to `sourceArchiveDir` (below it their whole path, as Spark does),
      "delete" removes them, "off" leaves them. A file is moved or removed only when its epoch is published and no kept
      epoch or savepoint would read it again (settings `keep_epochs`, `keep_age`, `keep_thinned`).
    - `ignoreMissingFiles`: True lets you restore an epoch although files that it would read again no longer exist. The rows
      of these files are then missing.
    - CSV: `header` (the source finds columns by name), `delimiter`, `quote`, `multiLine` (line ends inside quotes),
      `nullValue` (an unquoted empty field is null, too).

    Folders of Spark's file sink: the source reads only the files that the sink's log (`_spark_metadata`) names as
    committed, as Spark does. If a committed file is deleted before the job reads it, the job stops, unless
    `ignoreMissingFiles` is set. Leave `cleanSource` "off" for such a folder, because the log would still name removed
    files.

    Formats: a timestamp without an offset is local to the session's time zone (`spark.sql.session.timeZone`), as in Spark.
    The source unpacks text files `.gz`, `.bz2`, `.zst` and `.lz4`, and refuses `.deflate`, `.snappy`, `.lzo`, `.xz` and `.zip`.
    Lines end with LF, CRLF or CR. A Parquet file must have every declared column, with the declared type or a narrower one.
    `on_error` does not apply to Parquet files.

    Every executor must be able to read the path. Each start of the job verifies the sizes of consumed files, but not their
    content.
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
        recursiveFileLookup: bool = False,
        header: bool = True,
        delimiter: str = ",",
        quote: str = '"',
        nullValue: str = "",
        multiLine: bool = False,
        maxFilesPerTrigger: int = 256,
        maxBytesPerTrigger: int = 128 << 20,
        maxFileAge: str = "7 days",
        cleanSource: CleanSource = "off",
        sourceArchiveDir: str | None = None,
        ignoreMissingFiles: bool = False,
    ) -> None:
        if start not in ("earliest", "latest"):
            raise ConfigInvalid(f"start is 'earliest' or 'latest', not {start!r}")
        self._settings = FilesSettings(
            path=path,
            format=format,
            on_error=on_error,
            positions=positions,
            recursive=recursiveFileLookup,
            header=header,
            delimiter=delimiter,
            quote=quote,
            null_value=nullValue,
            multiline=multiLine,
            files_per_batch=maxFilesPerTrigger,
            bytes_per_batch=maxBytesPerTrigger,
            max_age_ms=age_ms(maxFileAge),
            ignore_missing=ignoreMissingFiles,
        )
        self._schema = schema
        self._start = start
        self._directory = Directory(path, recursiveFileLookup, ignoreMissingFiles)
        self._cleaning = Cleaning(self._directory, cleanSource, sourceArchiveDir)
        self._cleaner = Cleaner(self._cleaning)
        self._ignore_missing = ignoreMissingFiles
        self._ledger = FileLedger()
        self._lists: TemporaryFolder | None = None

    def remember_in(self, folder: Folder) -> None:
        """Set the ledger's folder."""
        self._ledger = FileLedger(folder)

    def check(self, spark: SparkSession) -> None:
        """Raise `SourceInvalid` for a missing directory, a bad schema, or a first file of another kind.

        Raises `ConfigInvalid` for unusable cleaning settings.
        """
        from spark_ckpt.spark_internals.arrow_types import arrow_schema_of

        data = declared(self._schema)
        check_schema(data, self._settings.format)
        self._cleaning.check()
        for first in sorted(self._directory.names()):
            try:
                for file in self._directory.stat([first]).values():
                    return check_file(self._directory, file, self._settings, arrow_schema_of(data))
            except SourceInvalid:
                # Consumed files may be removed at any time, by the cleaning of a driver before, too.
                if self._directory.stat([first]):
                    raise
        return None

    def start(self, spark: SparkSession) -> Cursor:
        """Return the beginning, or a cursor after all current files."""
        if self._start == "earliest":
            return Consumed().cursor(self._settings.path)
        # These files go into the ledger, too: without them, the first listing would take them for new ones.
        present = [replace(file, read=False) for file in self._directory.files()]
        return self._ledger.after(Consumed(), present, newest_of(present)).cursor(self._settings.path)

    def read(self, spark: SparkSession, cursor: Cursor) -> DataFrame:
        """Return a streaming DataFrame of the files after `cursor`. Raises `SourceInvalid` if a consumed file has
        another size.
        """
        consumed = Consumed.of(cursor)
        files = self._ledger.files(consumed)
        self._check_sizes(files)
        here = place_of(self._settings.path)  # Python workers run in the folder where Java was started
        spark.dataSource.register(FilesDataSource)
        return (
            spark.readStream.format(FORMAT_NAME)
            .option("settings", replace(self._settings, path=here, time_zone=session_zone(spark)).to_json())
            .option("schema", output_schema(declared(self._schema), self._settings).json())
            .option("offset", json.dumps(Offset(consumed.count, consumed.newest_ms).json()))
            .option("consumed", str(self._written(files.values())) if files else "")
            .load()
        )

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        """Return the cursor after the batch that ended at Spark's offset. The ledger then has its files."""
        ended, before = Offset.of(json.loads(offset)), Consumed.of(previous)
        if ended.count == before.count:
            return previous
        # An offset has the files of its own batch only. The names of a skipped batch would be missing in the ledger,
        # and be read again.
        if ended.count != before.count + len(ended.files):
            raise SourceInvalid(
                f"{self._settings.path}: batches are missing between {before.count} and {ended.count} files"
            )
        after = self._ledger.after(before, ended.files, ended.newest_ms, self._unforgettable)
        return after.cursor(self._settings.path)

    def end(self, spark: SparkSession) -> Cursor:
        """Return the names of all complete files that exist now."""
        return {"names": sorted(self._directory.names())}

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        """Return True if all files of `end` are consumed or gone."""
        names = end["names"]
        assert isinstance(names, list)  # noqa: S101 - what end() gave
        # The ledger forgets old files, so that some names of a long directory stay in this set although they were
        # read.
        left = set(map(str, names)) - self._ledger.files(Consumed.of(cursor)).keys()
        one = next(iter(left), None)
        # One unread file is enough: a look at all of them would cost a listing after each batch of a long directory.
        return one is None or not (self._directory.stat([one]) or self._directory.stat(left))

    def check_cursor(self, cursor: Cursor | None, newest: Cursor) -> None:
        """Raise `SourceInvalid` if files that were consumed between `cursor` and `newest` are gone."""
        # From its beginning such a job reads no file that is there now.
        if cursor is None and self._start == "latest":
            return
        before = Consumed() if cursor is None else Consumed.of(cursor)
        missing = check_readable(self._ledger, self._directory, before, Consumed.of(newest), self._cleaning)
        if missing is not None and not self._ignore_missing:
            raise missing
        if missing is not None:
            _log.warning("ignoreMissingFiles: %s", missing.what)

    @classmethod
    def memory_damage(cls, folder: Folder, cursors: Sequence[Cursor]) -> Sequence[SourceInvalid | None]:
        """Return the damage of the part of the ledger that each cursor needs, or None."""
        return memory_damage(folder, cursors)

    def release(self, kept: Sequence[Cursor]) -> None:
        """Forget files that only older epochs needed, and clean files that no kept epoch would read again.

        Nothing is removed while a cursor of another directory is kept: it does not list the consumed files of this
        directory.
        """
        if any(cursor.get("path") != self._settings.path for cursor in kept):
            return
        all_kept = [Consumed.of(cursor) for cursor in kept]
        self._ledger.sweep(all_kept)
        if all_kept and not self._cleaner.busy and self._cleaning.is_on:
            self._cleaner.clean(self._unneeded(all_kept))

    def identity(self, spark: SparkSession) -> Mapping[str, str]:
        """Return the endpoint: the folder. The ledger has its consumed files."""
        return {"kind": "files", "path": place_of(self._settings.path)}

    def describe(self) -> Mapping[str, str]:
        """Return kind, path and format."""
        return {"kind": "files", "path": self._settings.path, "format": self._settings.format}

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _check_sizes(self, consumed: Mapping[str, DataFile]) -> None:
        changed = []
        for name, now in self._directory.stat(consumed).items():
            before = consumed[name]
            if now.size != before.size:
                raise rewritten(self._settings.path, name, before.size, now.size)
            if now.modified_ms != before.modified_ms and before.modified_ms:
                changed.append(name)
        if changed:
            _log.warning(
                "%s: %d consumed files were modified since, at the same size; they are not read again: %s",
                self._settings.path,
                len(changed),
                ", ".join(changed[:_NAMED_MAX]),
            )

    def _unforgettable(self, files: Sequence[DataFile], newest_ms: int) -> Sequence[DataFile]:
        """Return the files that exist, or are young enough to come back."""
        if len(files) < FORGETTING_PAYS:
            return files
        # Only for many files: the listing costs more than a short ledger saves.
        present = self._directory.names()
        horizon_ms = newest_ms - self._settings.max_age_ms
        return [file for file in files if file.modified_ms >= horizon_ms or file.name in present]

    def _unneeded(self, kept: Sequence[Consumed]) -> list[DataFile]:
        """Return the files that every kept cursor has consumed, and that are unchanged."""
        # What the oldest cursor has not consumed, its restore would read again.
        oldest = min(kept, key=lambda consumed: consumed.count)
        files = self._ledger.files(oldest)
        names = files.keys() & self._directory.names()
        for consumed in kept:
            if names and not set(oldest.segments) <= set(consumed.segments):
                # A cursor that extends the oldest one's segments has consumed its files; others are compared.
                names &= self._ledger.files(consumed).keys()
        # A file that the job left out at its start was read by no epoch: it is not the job's to remove.
        now = self._directory.stat(name for name in names if files[name].read)
        # A file that was written again under a consumed name is left to its owner.
        return [files[name] for name, file in now.items() if _same(file, files[name])]

    def _written(self, files: Iterable[DataFile]) -> Path:
        """Write a list of files for Spark's planner, a separate process on the driver's host. It is deleted with
        this source.
        """
        if self._lists is None:
            self._lists = TemporaryFolder("files")
        handle, name = tempfile.mkstemp(dir=self._lists.path)
        os.close(handle)
        Path(name).write_bytes(encoded(list(files)))
        return Path(name)


def _same(one: DataFile, other: DataFile) -> bool:
    return (one.size, one.modified_ms) == (other.size, other.modified_ms)
