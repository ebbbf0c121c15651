"""Reading side of an edge between jobs: follows the sender's log, and registers its position there."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_ckpt.connector import Cursor, Folder
from spark_ckpt.epochs.names import valid_name
from spark_ckpt.epochs.records import ReaderMoved
from spark_ckpt.errors import SourceInvalid
from spark_ckpt.program_edges.following import EdgeLog, position_of
from spark_ckpt.program_edges.planner import FORMAT_NAME, EdgeDataSource, EdgeSettings
from spark_ckpt.store.schemes import store_location

_ID = "reader"


@dataclass(slots=True)
class EdgeSource:
    """Rows of an edge of another job. `Edge` describes the parameters."""

    edge: str
    store: str
    job: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    begins: Literal["earliest", "latest"] = "earliest"
    files_per_batch: int = 256
    bytes_per_batch: int = 128 << 20
    _folder: Folder | None = field(default=None, init=False, repr=False)
    _own_store: str = field(default="", init=False, repr=False)
    _own_options: Mapping[str, str] = field(default_factory=dict, init=False, repr=False)
    _columns: StructType | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        valid_name("edge", self.edge)
        # Absolute: Python workers run in the folder where Java was started.
        self.store = store_location(self.store, self.storage_options).uri

    def check(self, spark: SparkSession) -> None:
        """Raise `SourceInvalid` if there is no such store, job or edge."""
        self.open_log()

    def start(self, spark: SparkSession) -> Cursor:
        """Return the position before the oldest rows that the sender keeps, or after the newest."""
        log = self.open_log()
        return (log.beginning() if self.begins == "earliest" else log.end()).model_dump()

    def read(self, spark: SparkSession, cursor: Cursor) -> DataFrame:
        """Return a streaming DataFrame of the rows after `cursor`. Raises `SourceUndone`, `SourceInvalid`."""
        log, position = self.open_log(), position_of(cursor)
        log.require(position)
        spark.dataSource.register(EdgeDataSource)
        return (
            spark.readStream.format(FORMAT_NAME)
            .options(**self._settings().options())
            .option("schema", (self._columns or _schema_of(log, self.edge)).json())
            .option("cursor", position.model_dump_json())
            .load()
        )

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        """Return the cursor of an offset: Spark's offset of this source is a cursor already."""
        return position_of(json.loads(offset)).model_dump()

    def end(self, spark: SparkSession) -> Cursor:
        """Return the position after the sender's newest epoch."""
        return self.open_log().end().model_dump()

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        """Return True if everything up to `end` is read."""
        here, there = position_of(cursor), position_of(end)
        return (here.epoch, here.files) >= (there.epoch, there.files)

    def lag(self, cursor: Cursor, end: Cursor) -> int:
        """Return the number of rows between two positions."""
        return sum(file.staged.rows for file in self.open_log().between(position_of(cursor), position_of(end)))

    def identity(self, spark: SparkSession) -> Mapping[str, str]:
        """Return the endpoint: the sender's store and the edge."""
        store = self.open_log().store
        return {"kind": "edge", "path": store.location.uri, "store id": store.id, "job": store.job, "edge": self.edge}

    def describe(self) -> Mapping[str, str]:
        """Return kind, store and edge."""
        return {"kind": "edge", "path": self.store, "edge": self.edge}

    def wait_for_index_of(self, own_store: str, storage_options: Mapping[str, str]) -> None:
        """Read a row no earlier than the index of the job in `own_store` has reached its stamp (`protocol="index"`)."""
        self._own_store = store_location(own_store, storage_options).uri
        self._own_options = dict(storage_options)

    def join_stages(self, store: str, job: str, storage_options: Mapping[str, str], columns: StructType) -> None:
        """Read the edge of another stage of this program.

        - `store`, `job`: store and name of the sending stage.
        - `columns`: the edge's columns in this program. Rows of an older program have nulls in new ones.
        """
        self.store, self.job = store_location(store, storage_options).uri, job
        self.storage_options, self._columns = dict(storage_options), columns

    @property
    def joins_stages(self) -> bool:
        """True if the sender is a stage of the same program, which has the same protocol."""
        return self._columns is not None

    def sender_line(self) -> tuple[str, int]:
        """Return the name of the sending program, and the newest index that it serves."""
        log = self.open_log()
        return log.store.job, log.index()

    def sender_index(self) -> int:
        """Return the newest index of the sender; 0 if it runs without `protocol="index"`."""
        return self.open_log().index()

    def sender_stamp(self) -> int:
        """Return the newest index that the sender has ever served on its branch."""
        return self.open_log().stamp()

    def read_stamp(self, cursor: Cursor) -> int:
        """Return the stamp of the newest rows before `cursor`; 0 for none."""
        return self.open_log().read_stamp(position_of(cursor))

    def remember_in(self, folder: Folder) -> None:
        """Set the folder with the id by which the sender knows this source."""
        self._folder = folder

    def check_cursor(self, cursor: Cursor | None, newest: Cursor) -> None:
        """Raise `SourceUndone` or `SourceInvalid` if the job cannot read on from `cursor`."""
        if cursor is not None:
            self.open_log().require(position_of(cursor))

    def past_lost(self, spark: SparkSession, cursor: Cursor) -> Cursor:
        """Return the cursor behind rows that the sender's retention has deleted."""
        return self.open_log().past_lost(position_of(cursor)).model_dump()

    def release(self, kept: Sequence[Cursor]) -> None:
        """Do nothing: see `hold`."""

    def hold(self, kept: Sequence[Cursor]) -> None:
        """Write the oldest of `kept` into the sender's log: its retention keeps every later row.

        Cursors of undone rows, or of another sender, do not count.
        """
        log = self.open_log()
        # The oldest one that still counts: a restore to any kept epoch reads on from there.
        position = next((each for each in map(position_of, kept) if log.is_current(each)), None)
        if self._folder is not None and position is not None:
            reader, place = _id_in(self._folder), self._folder.uri
            log.store.log.move_reader(ReaderMoved(reader=reader, place=place, edge=self.edge, position=position))

    def open_log(self) -> EdgeLog:
        """Open the sender's log, as this edge sees it. Raises `SourceInvalid`."""
        return self._settings().open()

    def _settings(self) -> EdgeSettings:
        return EdgeSettings(
            self.store,
            self.edge,
            self.job,
            self.files_per_batch,
            self.bytes_per_batch,
            self._own_store,
            self._own_options,
            storage_options=dict(self.storage_options),
        )


def _schema_of(log: EdgeLog, edge: str) -> StructType:
    from pyspark.sql.types import StructType

    try:
        # Nullable: rows of before a column was added have null in it.
        return StructType.fromJson(json.loads(log.store.published_edges()[edge])).toNullable()
    except (KeyError, ValueError) as error:
        raise SourceInvalid(
            f"the columns of edge '{edge}' cannot be read", hint="start the sending job once more: it writes them"
        ) from error


def _id_in(folder: Folder) -> str:
    """Return the source's id, which moves with its job's store."""
    try:
        return folder.read_bytes(_ID).decode()
    except FileNotFoundError:
        fresh = uuid.uuid4().hex
        folder.write_bytes(_ID, fresh.encode())
        return fresh
