"""The Spark side of `FilesSource`: a Python streaming data source that consumes a directory file by file.

`latestOffset` and `partitions` run in one Python process on the driver's host, `read` in tasks. Both see the same
directory under the same path. A batch takes one listing: an offset holds its batch's files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_ckpt.connector_parts.file_stream import FileRun, FileStreamReader, file_runs
from spark_ckpt.connector_parts.read_limits import ReadAllAvailable, ReadLimit
from spark_ckpt.errors import SourceInvalid
from spark_ckpt.tasks.worker_process import prepare_worker
from spark_ckpt_files.ledger import decoded
from spark_ckpt_files.listing import DataFile, Directory
from spark_ckpt_files.offsets import Offset
from spark_ckpt_files.settings import FilesSettings

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_NAME = "spark_ckpt_files"
_DAY_MS = 24 * 3600 * 1000


class FilesDataSource(DataSource):
    """Python data source for Spark.

    Options: `settings` and `offset`, both JSON; `schema`, the output schema in Spark's JSON; `consumed`, a path or
    empty.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.readStream.format(...)`."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Return the output schema that the source computed on the driver."""
        return StructType.fromJson(json.loads(self.options["schema"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a query; Spark ships a copy of it to every task."""
        return FilesStreamReader(
            FilesSettings.from_json(self.options["settings"]),
            schema,
            Offset.of(json.loads(self.options["offset"])),
            self.options["consumed"],
        )


class FilesStreamReader(FileStreamReader):
    """Plans batches from listings: every file that is not consumed, oldest first.

    `consumed`: path of a list of files (`ledger.encoded`) on this host; empty if there are none.
    """

    def __init__(self, settings: FilesSettings, schema: StructType, initial: Offset, consumed: str = "") -> None:
        super().__init__(initial.json(), settings.files_per_batch)
        self._settings = settings
        self._schema = schema
        self._directory = Directory(settings.path, settings.recursive, settings.ignore_missing)
        self._folder = self._directory.held()
        self._initial = initial
        self._consumed = consumed
        self._known: dict[str, DataFile] | None = None
        self._count = initial.count
        self._present: set[str] | None = None
        self._pinned: set[str] | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the current files as the end of an AvailableNow query."""
        self._pinned = self._directory.names()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Return the end of the next batch: whole files, limited in number and bytes, at least one."""
        before = _offset(start)
        fresh = self._fresh(before)
        if self._pinned is not None:
            # Files that have come since the start would keep an AvailableNow query from its end.
            fresh = [file for file in fresh if file.name in self._pinned]
        taken = fresh if isinstance(limit, ReadAllAvailable) else self._bounded(fresh, limit)
        return dict(before.after(taken).json())

    def reportLatestOffset(self) -> dict[str, object] | None:
        """Return None: an answer would take another listing per batch."""
        return None

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """Return the files between two offsets; every replay returns the same files with the same sizes."""
        first, last = _offset(start), _offset(end)
        if first.count == last.count:
            return []
        # An offset lists the files of its own batch only.
        if first.count + len(last.files) != last.count:
            raise _not_one_batch(self._settings.path, first, last)
        return file_runs(last.files)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition's files, oldest file first."""
        # In tasks only: the process that lists the directory starts without Arrow's readers.
        from spark_ckpt.spark_internals.arrow_types import arrow_schema_of
        from spark_ckpt_files.reading import read_file

        prepare_worker()
        assert isinstance(partition, FileRun)  # noqa: S101 - what partitions() returned
        output = arrow_schema_of(self._schema)
        for file in partition.files:
            yield from read_file(self._directory, file, self._settings, output)

    def __getstate__(self) -> dict[str, object]:
        """Leave out the lists of consumed files: tasks do not need them."""
        return self.__dict__ | {"_known": None, "_present": None, "_pinned": None}

    def _fresh(self, before: Offset) -> list[DataFile]:
        known = self._advanced(before)
        passed: set[str] = set()
        fresh = self._directory.files(known, passed)
        replaced = self._folder is not None and self._folder.replaced()
        # A status for every consumed file would cost a request each, so that only names that were gone are compared.
        self._check_again(known.keys() if replaced else self._back(passed), known)
        self._present = passed | {file.name for file in fresh}
        horizon_ms = before.newest_ms - self._settings.max_age_ms
        # The ledger forgets files that are older than maxFileAge and gone. Such a file may be a consumed one that was
        # put back.
        for file in fresh[:1]:  # the oldest
            if before.count and file.modified_ms < horizon_ms:
                raise _too_old(self._settings.path, file, before.newest_ms, horizon_ms)
        return fresh

    def _advanced(self, before: Offset) -> dict[str, DataFile]:
        """Return everything consumed up to `before`, by name."""
        if self._known is None:
            listed = decoded(Path(self._consumed).read_bytes()) if self._consumed else ()
            self._known = {file.name: file for file in listed}
        # The batch before has ended: its files are consumed now.
        if before.count != self._count:
            if self._count + len(before.files) != before.count:
                raise _not_one_batch(self._settings.path, self._initial, before)
            self._known |= {file.name: file for file in before.files}
            self._count = before.count
        return self._known

    def _back(self, passed: set[str]) -> set[str]:
        """Return the consumed files that exist now and did not at the last listing."""
        return passed - self._present if self._present is not None else set()

    def _check_again(self, back: Collection[str], known: Mapping[str, DataFile]) -> None:
        """Raise `SourceInvalid` if a consumed file was gone and is back, alone or with its folder, with other
        content.
        """
        for name, now in self._directory.stat(back).items():
            if (now.size, now.modified_ms) != (known[name].size, known[name].modified_ms):
                raise SourceInvalid(
                    f"{self._settings.path}: file {name} was consumed, removed, and re-created with other content",
                    hint="give it a name of its own: a name is read once",
                    file=name,
                )

    def _bounded(self, fresh: Sequence[DataFile], limit: ReadLimit) -> list[DataFile]:
        taken: list[DataFile] = []
        left = self._settings.bytes_per_batch
        for file in fresh[: self._files_of(limit)]:
            left -= file.size
            # At least one file, even one above the limit: otherwise the source would stop.
            if taken and left < 0:
                break
            taken.append(file)
        return taken


def _offset(offset: Mapping[str, object]) -> Offset:
    return Offset.of(offset)  # type: ignore[arg-type]


def _not_one_batch(path: str, first: Offset, last: Offset) -> SourceInvalid:
    return SourceInvalid(
        f"{path}: the checkpoint is at {last.count} files, the source was read from {first.count} on",
        hint="begin a query with a fresh checkpoint, at the cursor of the epoch that it continues from",
    )


def _too_old(path: str, file: DataFile, newest_ms: int, horizon_ms: int) -> SourceInvalid:
    days = (newest_ms - file.modified_ms) // _DAY_MS + 1
    longer = f"choose a longer maxFileAge: FilesSource(..., maxFileAge='{days} days')"
    return SourceInvalid(
        f"{path}: file {file.name} was modified {_utc(file.modified_ms)}, before {_utc(horizon_ms)}: consumed files of that "
        "age are forgotten when they are removed, so the job cannot know if it was read",
        hint=f"touch it to have it read, move it away to have it left out, or {longer}",
        file=file.name,
    )


def _utc(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
