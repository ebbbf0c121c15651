"""Readers that the suite runs a source with: `PythonReading` without a JVM, `SparkReading` with real queries."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_ckpt.connector import BeginsAtSeed, Cursor, Json, Source
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.spark_internals.checkpoint_files import logged_offsets
from spark_ckpt.spark_internals.shipping import shipped
from spark_ckpt.testing.promises import Row, require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, SimpleDataSourceStreamReader
    from pyspark.sql.types import StructType

MOST_BATCHES = 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """One micro-batch: its end, as the source's line in Spark's offset log, and its rows in order."""

    offset: str
    rows: list[Row]


class Reading(Protocol):
    """Runner of a source's streams."""

    @property
    def session(self) -> SparkSession:
        """Session that the source is called with."""

    def batches(self, source: Source, cursor: Cursor) -> list[ReadBatch]:
        """Read everything that is present after `cursor`, as an AvailableNow query does."""

    def replayed(
        self, make: Callable[[], Source], cursor: Cursor, meanwhile: Callable[[], object]
    ) -> tuple[list[Row], list[Row]]:
        """Read the first batch after `cursor` twice: its rows, then `meanwhile`, then the rows that a new process gets
        up to its logged end.
        """

    def columns(self, source: Source, cursor: Cursor) -> str:
        """Return the schema of the stream after `cursor`, as text."""


class PythonReading:
    """Runs sources written with Spark's Python data source API as Spark does, in this process and without a JVM.

    Reader and partitions are pickled on their way to a task, offsets pass through JSON. `zone`: the session's time
    zone.
    """

    def __init__(self, zone: str = "UTC") -> None:
        self._session = _Session({"spark.sql.session.timeZone": zone})

    @property
    def session(self) -> SparkSession:
        """Object with `conf`, `dataSource.register` and `readStream` of a session, and nothing else."""
        return cast("SparkSession", self._session)

    def batches(self, source: Source, cursor: Cursor) -> list[ReadBatch]:
        """Plan batches with the reader's own limit, up to the end at the beginning of the call."""
        stream = self._stream(source, cursor)
        reader = stream.reader()
        try:
            # Bounded: a source whose end moves for ever must not hang the suite.
            return list(itertools.islice(_batches(stream, reader, to_the_end=True), MOST_BATCHES))
        finally:
            reader.stop()

    def replayed(
        self, make: Callable[[], Source], cursor: Cursor, meanwhile: Callable[[], object]
    ) -> tuple[list[Row], list[Row]]:
        """Read a batch twice. The second time only `partitions` is called, with the logged offsets."""
        stream = self._stream(make(), cursor)
        reader = stream.reader()
        start = _passed(reader.initialOffset())
        batch = next(_batches(stream, reader, to_the_end=False), None)
        require(batch is not None, "there is a batch to be read again")
        first = cast("ReadBatch", batch)
        meanwhile()
        again = self._stream(make(), cursor)
        return first.rows, list(again.rows(again.reader(), start, json.loads(first.offset)))

    def columns(self, source: Source, cursor: Cursor) -> str:
        """Return the schema as DDL."""
        return self._stream(source, cursor).schema.simpleString()

    def _stream(self, source: Source, cursor: Cursor) -> _Stream:
        stream: object = source.read(self.session, cursor)
        if not isinstance(stream, _Stream):
            raise ConfigInvalid(
                f"{type(source).__name__}.read does not end with `readStream ... load()` of a Python data source",
                hint="read it with real queries: SparkReading(spark, folder)",
            )
        return stream


class SparkReading:
    """Runs real queries in a session; each has a fresh checkpoint below `folder`.

    Sources that begin at a seed (`BeginsAtSeed`) are refused: only the runtime creates such checkpoints.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folders = (folder / f"checkpoint-{number}" for number in itertools.count())

    @property
    def session(self) -> SparkSession:
        """The session."""
        return self._spark

    def batches(self, source: Source, cursor: Cursor) -> list[ReadBatch]:
        """Run an AvailableNow query from a fresh checkpoint."""
        folder = next(self._folders)
        rows: dict[int, list[Row]] = {}
        self._run(source, cursor, folder, lambda frame, number: rows.update({number: _collected(frame)}))
        return [ReadBatch(offset, rows.get(number, [])) for number, offset in _logged(folder)]

    def replayed(
        self, make: Callable[[], Source], cursor: Cursor, meanwhile: Callable[[], object]
    ) -> tuple[list[Row], list[Row]]:
        """Read a batch twice. The first query fails in its first batch; the second one continues from its checkpoint."""
        from pyspark.errors import StreamingQueryException

        folder = next(self._folders)
        attempts: list[list[Row]] = []

        def die(frame: DataFrame, number: int) -> None:
            attempts.append(_collected(frame))
            raise RuntimeError("planned death")

        try:
            self._run(make(), cursor, folder, die)
        except StreamingQueryException:
            meanwhile()
        self._run(make(), cursor, folder, lambda frame, number: attempts.append(_collected(frame)))
        require(len(attempts) > 1, "there is a batch to be read again")
        return attempts[0], attempts[1]

    def columns(self, source: Source, cursor: Cursor) -> str:
        """Return the schema as DDL."""
        return source.read(self._spark, cursor).schema.simpleString()

    def _run(self, source: Source, cursor: Cursor, folder: Path, handle: Callable[[DataFrame, int], None]) -> None:
        if isinstance(source, BeginsAtSeed):
            raise ConfigInvalid("a source that begins at a seed is read by a job only, not by SparkReading")
        writer = source.read(self._spark, cursor).writeStream.foreachBatch(handle).trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder)).start().awaitTermination()


# Reading without a JVM.


class _Session:
    """The part of a session that a source over the Python data source API calls."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        self.conf = dict(conf)
        self.formats: dict[str, type[DataSource]] = {}
        self.dataSource = self  # for `spark.dataSource.register`

    def register(self, source: type[DataSource]) -> None:
        self.formats[source.name()] = source

    @property
    def readStream(self) -> _Builder:
        return _Builder(self.formats)


class _Builder:
    def __init__(self, formats: Mapping[str, type[DataSource]]) -> None:
        self._formats = formats
        self._format = ""
        self._options: dict[str, str] = {}
        self._schema: StructType | str | None = None

    def format(self, name: str) -> _Builder:
        self._format = name
        return self

    def option(self, key: str, value: object) -> _Builder:
        # Spark writes true and false in small letters.
        self._options[key] = json.dumps(value) if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: object) -> _Builder:
        for key, value in options.items():
            self.option(key, value)
        return self

    def schema(self, schema: StructType | str) -> _Builder:
        self._schema = schema
        return self

    def load(self) -> _Stream:
        from pyspark.sql.datasource import CaseInsensitiveDict
        from pyspark.sql.types import StructType

        source = self._formats[self._format](CaseInsensitiveDict(self._options))
        schema = source.schema() if self._schema is None else self._schema
        return _Stream(source, cast("StructType", StructType.fromDDL(schema)) if isinstance(schema, str) else schema)


@dataclass(frozen=True)
class _Stream:
    source: DataSource
    schema: StructType

    def reader(self) -> DataSourceStreamReader | _Simple:
        """Return a reader from a copy of the data source, as a query's planner does."""
        from pyspark.sql.datasource import DataSource

        source = shipped(self.source)
        # Spark takes the simple reader of a source that defines no other.
        if type(source).streamReader is DataSource.streamReader:
            return _Simple(source.simpleStreamReader(self.schema))
        return source.streamReader(self.schema)

    def rows(self, reader: DataSourceStreamReader | _Simple, start: Any, end: Any) -> Iterator[Row]:
        """Yield the rows that the tasks of a batch return, partition after partition."""
        partitions = [shipped(each) for each in reader.partitions(start, end)]
        task = shipped(reader)
        for partition in partitions:
            for found in task.read(partition):
                yield from self._dicts(found)

    def _dicts(self, found: object) -> Iterator[Row]:
        if isinstance(found, pa.RecordBatch):
            yield from found.to_pylist()
        else:
            values = tuple(cast("Iterable[object]", found))
            fits = len(values) == len(self.schema.names)
            require(fits, "a row has a value for every column", row=values, columns=self.schema.names)
            yield dict(zip(self.schema.names, values, strict=True))


class _Simple:
    """Adapter for a simple reader: a batch is one partition, read again between its offsets."""

    def __init__(self, reader: SimpleDataSourceStreamReader) -> None:
        self._reader = reader

    def initialOffset(self) -> dict[str, object]:
        return self._reader.initialOffset()

    def getDefaultReadLimit(self) -> None:
        return None

    def latestOffset(self, start: dict[str, object], limit: object) -> dict[str, object]:
        _, end = self._reader.read(start)
        return end

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        return [InputPartition((start, end))]

    def read(self, partition: InputPartition) -> Iterator[object]:
        start, end = partition.value
        return self._reader.readBetweenOffsets(start, end)

    def stop(self) -> None:
        """Do nothing: a simple reader holds no resources."""


def _batches(stream: _Stream, reader: Any, *, to_the_end: bool) -> Iterator[ReadBatch]:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    if to_the_end and isinstance(reader, SupportsTriggerAvailableNow):
        reader.prepareForTriggerAvailableNow()
    at = _passed(reader.initialOffset())
    # Spark compares offsets as JSON text, so that they pass through JSON here, too.
    while (end := _passed(_latest(reader, at))) != at:
        yield ReadBatch(json.dumps(end), list(stream.rows(reader, at, end)))
        at = end


def _latest(reader: Any, at: Json) -> object:
    """Call `latestOffset` as Spark does: with a limit if the reader takes one."""
    if not inspect.signature(reader.latestOffset).parameters:
        return reader.latestOffset()
    return reader.latestOffset(at, reader.getDefaultReadLimit())


def _passed(offset: object) -> Json:
    """Return an offset as it arrives on the other side of the planner's socket."""
    return cast("Json", json.loads(json.dumps(offset)))


# Reading with Spark.


def _collected(frame: DataFrame) -> list[Row]:
    return [{name: _plain(value) for name, value in row.asDict(recursive=True).items()} for row in frame.collect()]


def _plain(value: object) -> object:
    # Spark's rows have bytearrays, those that are read without it bytes.
    return bytes(value) if isinstance(value, bytearray) else value


def _logged(folder: Path) -> list[tuple[int, str]]:
    """Return number and end of every batch of a query with one source."""
    return [(number, str(offsets.lines[0])) for number, offsets in logged_offsets(folder)]
