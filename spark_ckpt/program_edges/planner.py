"""Python data source of an edge: plans batches from the sender's log, in a process next to the driver.

Tasks get a `SegmentReader` only, so that no worker loads the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_ckpt.connector_parts.file_stream import FileStreamReader, file_runs
from spark_ckpt.connector_parts.read_limits import ReadAllAvailable, ReadLimit
from spark_ckpt.connector_parts.reader_settings import ReaderSettings
from spark_ckpt.coordination.stage_process import Between, StageProcess
from spark_ckpt.epochs.records import Position
from spark_ckpt.program_edges.following import EdgeLog, position_of
from spark_ckpt.program_edges.segments import SegmentReader
from spark_ckpt.store.existing import existing_store

FORMAT_NAME = "spark_ckpt_edge"
# Spark hides options with `secret` in their names from plans and its UI (default of `spark.redaction.regex`).
_OWN = "secret_own_options"


@dataclass(frozen=True, slots=True)
class EdgeSettings(ReaderSettings):
    """Settings of a reader, besides schema and position."""

    store: str
    edge: str
    job: str | None
    files_per_batch: int
    bytes_per_batch: int
    own_store: str = ""
    """The reader's own store with `protocol="index"`: its index decides which rows may be read now."""
    own_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def options(self) -> dict[str, str]:
        """Return the settings as options of a Spark reader."""
        found = ReaderSettings.options(self)
        visible = json.loads(found["settings"])
        own = visible.pop("own_options")
        return {**found, "settings": json.dumps(visible), _OWN: json.dumps(own)}

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> Self:
        """Return the settings of reader options; the inverse of `options`."""
        # A dataclass with slots is a second class, and `super()` without arguments would mean the first.
        found = super(EdgeSettings, cls).of_options(options)
        return replace(found, own_options=json.loads(options[_OWN]))

    def open(self) -> EdgeLog:
        """Open the sender's log. Raises `SourceInvalid`."""
        return EdgeLog.open(self.store, self.edge, self.job, self.storage_options)


class EdgeDataSource(DataSource):
    """Python data source for Spark. Options: `settings`, `secret_storage_options`, `cursor` and `schema`, all JSON."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.readStream.format(...)`."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Return the edge's columns at the time of `EdgeSource.read`."""
        return StructType.fromJson(json.loads(self.options["schema"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the planner of a query."""
        settings = EdgeSettings.of_options(self.options)
        return EdgeStreamReader(settings, schema, position_of(json.loads(self.options["cursor"])))


class EdgeStreamReader(FileStreamReader):
    """Plans batches. A batch may end between two files of an epoch, and the next one continues there."""

    def __init__(self, settings: EdgeSettings, schema: StructType, initial: Position) -> None:
        super().__init__(initial.model_dump(), settings.files_per_batch)
        self._settings = settings
        self._schema = schema
        self._log = settings.open()
        own, options = settings.own_store, settings.own_options
        # Spark plans again every 10 ms while no rows arrive: opened once, the log reads only what is new.
        self._own_log = existing_store(own, options).log if own else None
        self._last: Position | None = None  # end of an AvailableNow query

    def __reduce__(self) -> tuple[object, ...]:
        """Arrive in tasks as their part."""
        # A worker needs neither the log nor its lock, and would have to read the log for each task.
        location = self._log.store.staged(self._settings.edge).location
        return SegmentReader, (self._settings.edge, location, self._schema)

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the newest epoch as the end of an AvailableNow query."""
        self._last = self._log.end()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Return the end of the next batch: whole files, limited in number and bytes."""
        every = isinstance(limit, ReadAllAvailable)
        files, size = (None, None) if every else (self._files_of(limit), self._settings.bytes_per_batch)
        lets_in = self._stage_process().lets_in
        return self._log.next_end(Position.model_validate(start), files, size, self._last, lets_in).model_dump()

    def _stage_process(self) -> StageProcess:
        """Return the reader's part in the protocol between programs, as its own log has it now."""
        if self._own_log is None:
            return StageProcess(Between.INDEPENDENT, 1000)  # the interval is for senders
        log_state = self._own_log.state()
        return StageProcess(Between.INDEX, 1000, log_state.latest, log_state.index)

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """Return the files between two offsets; every replay returns the same files."""
        return file_runs(self._log.between(Position.model_validate(start), Position.model_validate(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition's files."""
        # Outside of tasks: there `__reduce__` has made it a `SegmentReader`.
        location = self._log.store.staged(self._settings.edge).location
        return SegmentReader(self._settings.edge, location, self._schema).read(partition)
