"""The Spark side: a Python streaming data source that consumes a directory, file by file.

`latestOffset` and `partitions` run in one Python process beside the driver, `read` in tasks. Both see the
same directory under the same path. The offsets that Spark logs are this package's cursors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from spark_ckpt.errors import SourceInvalid
from spark_ckpt.file_stream import FileRun, FileStreamReader, file_runs
from spark_ckpt.worker_process import settle
from spark_ckpt_files.listing import DataFile, Directory, vanished
from spark_ckpt_files.position import Position, consumed_and_fresh, prove
from spark_ckpt_files.reading import read_file
from spark_ckpt_files.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_NAME = "spark_ckpt_files"


class FilesDataSource(DataSource):
    """Options: `settings` and `cursor`, both JSON, and `schema`, the output schema in Spark's JSON."""

    @classmethod
    def name(cls) -> str:
        """The name in `spark.readStream.format(...)`."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """The output schema that the source computed on the driver."""
        return StructType.fromJson(json.loads(self.options["schema"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """One reader per query; Spark ships a copy of it to every task."""
        return FilesStreamReader(
            Settings.from_json(self.options["settings"]),
            schema,
            Position.of(json.loads(self.options["cursor"])),
        )


class FilesStreamReader(FileStreamReader):
    """Plans batches from listings; refuses a directory that is not append-only instead of skipping a file."""

    def __init__(self, settings: Settings, schema: StructType, initial: Position) -> None:
        super().__init__(initial.cursor(), settings.files_per_batch)
        self._settings = settings
        self._schema = schema
        self._directory = Directory(settings.path, settings.recursive)
        self._proven: tuple[Position, list[DataFile]] = (Position(), [])
        self._seen: list[DataFile] = []
        self._last: str | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """Pin what is there now as the end of an AvailableNow query."""
        self._last = max((file.name for file in self._directory.files()), default="")

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """The end of the next batch: whole files, bounded in number and bytes, at least one."""
        position = _position(start)
        fresh = self._fresh(position)
        if self._last is not None:
            fresh = [file for file in fresh if file.name <= self._last]
        taken = fresh if isinstance(limit, ReadAllAvailable) else self._bounded(fresh, limit)
        return dict(position.after(taken).cursor())

    def reportLatestOffset(self) -> dict[str, object] | None:
        """Everything in the directory, for the query's progress."""
        return dict(Position().after(self._directory.files()).cursor())

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """The files between two offsets; the same files with the same sizes on every replay."""
        first, last = _position(start), _position(end)
        consumed = self._consumed(last)
        _, batch = consumed_and_fresh(consumed, first)
        if first.count + len(batch) != last.count:
            raise vanished(self._settings.path, last.name)
        return file_runs(batch)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition's files, in name order."""
        from pyspark.sql.pandas.types import to_arrow_schema

        settle()
        assert isinstance(partition, FileRun)  # noqa: S101 - what partitions() returned
        output = to_arrow_schema(self._schema, timezone="UTC")
        for file in partition.files:
            yield from read_file(self._directory, file, self._settings, output)

    def _fresh(self, position: Position) -> list[DataFile]:
        files = self._directory.files()
        consumed, fresh = consumed_and_fresh(files, position)
        self._prove(position, consumed)
        self._seen = files
        return fresh

    def _consumed(self, position: Position) -> list[DataFile]:
        consumed, _ = consumed_and_fresh(self._directory.files(), position)
        self._prove(position, consumed)
        return consumed

    def _prove(self, position: Position, consumed: list[DataFile]) -> None:
        """Hashing every name again is needed only if the listing does not extend what was proven last."""
        before, files = self._proven
        extends = consumed[: len(files)] == files and before.after(consumed[len(files) :]) == position
        if not extends:
            prove(self._settings.path, position, consumed, self._seen)
        self._proven = (position, consumed)

    def _bounded(self, fresh: Sequence[DataFile], limit: ReadLimit) -> list[DataFile]:
        taken: list[DataFile] = []
        left = self._settings.bytes_per_batch
        for file in fresh[: self._files_of(limit)]:
            left -= file.size
            if taken and left < 0:
                break
            taken.append(file)
        return taken


def _position(offset: Mapping[str, object]) -> Position:
    try:
        return Position.of(offset)  # type: ignore[arg-type]
    except (KeyError, ValueError) as error:
        raise SourceInvalid(f"not a cursor of a files source: {json.dumps(offset)}") from error
