"""The Spark side of `DeltaSource`: a Python streaming data source over the files that a Delta table's commits
append.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_ckpt.connector_parts.file_stream import FileRun, FileStreamReader, file_runs
from spark_ckpt.connector_parts.read_limits import ReadAllAvailable, ReadLimit
from spark_ckpt.connector_parts.reader_settings import ReaderSettings
from spark_ckpt.tasks.worker_process import prepare_worker
from spark_ckpt_delta.changes import Bounds, History, OnChange, Position
from spark_ckpt_delta.log import filesystem, open_table
from spark_ckpt_delta.reading import char_widths, padded, read_file

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_NAME = "spark_ckpt_delta"


@dataclass(frozen=True, slots=True)
class DeltaSettings(ReaderSettings):
    """Settings of a reader, besides schema and position."""

    table: str
    on_change: OnChange
    files_per_batch: int
    bytes_per_batch: int
    time_zone: str = "UTC"


class DeltaDataSource(DataSource):
    """Python data source for Spark. Options: `settings`, `secret_storage_options`, `cursor`, `schema` and its
    `version`, all JSON.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.readStream.format(...)`."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Return the table's schema at the time of `DeltaSource.read`."""
        return StructType.fromJson(json.loads(self.options["schema"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a query; Spark ships a copy of it to every task."""
        settings = DeltaSettings.of_options(self.options)
        initial = Position.of(json.loads(self.options["cursor"]))
        return DeltaStreamReader(settings, schema, initial, int(self.options["version"]))


class DeltaStreamReader(FileStreamReader):
    """Plans batches from the log. A batch may end between two files of one version, and the next one continues
    there. `seen`: the table's version that has the schema.
    """

    def __init__(self, settings: DeltaSettings, schema: StructType, initial: Position, seen: int) -> None:
        super().__init__(initial.cursor(), settings.files_per_batch)
        self._settings = settings
        self._schema = schema
        columns: list[dict[str, Any]] = schema.jsonValue()["fields"]
        self._history = History(settings.table, settings.storage_options, settings.on_change, columns, seen)
        self._last_version: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the newest version as the end of an AvailableNow query."""
        self._last_version = open_table(self._settings.table, self._settings.storage_options).version()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Return the end of the next batch: whole files, limited in number and bytes."""
        if isinstance(limit, ReadAllAvailable):
            bounds = Bounds(last_version=self._last_version)
        else:
            bounds = Bounds(self._files_of(limit), self._settings.bytes_per_batch, self._last_version)
        # Only the end counts here: `partitions` plans the files of a range again, for replays, too.
        end, _ = self._history.take(Position.of(start), bounds)
        return dict(end.cursor())

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """Return the files between two offsets; every replay returns the same files."""
        files = self._history.between(Position.of(start), Position.of(end))
        return file_runs(files)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition's files, in log order."""
        from spark_ckpt.spark_internals.arrow_types import arrow_schema_of

        prepare_worker()
        assert isinstance(partition, FileRun)  # noqa: S101 - what partitions() returned
        schema, widths = arrow_schema_of(self._schema), char_widths(self._schema)
        system = filesystem(self._settings.table, self._settings.storage_options)
        for file in partition.files:
            for batch in read_file(system, self._settings.table, file, schema, self._settings.time_zone):
                yield padded(batch, widths) if widths else batch
