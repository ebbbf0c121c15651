"""`SparkSource`: a format of `spark.readStream` as a source of a job.

It works for formats whose offset alone defines the position (one line of JSON in Spark's offset log). They must replay
the same rows from an offset. A fresh Spark checkpoint is seeded with the epoch's offset.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ckpt.connector import Cursor, Json, Seed
from spark_ckpt.connector_parts.arguments import checks_arguments
from spark_ckpt.connector_parts.table_id import TableId
from spark_ckpt.errors import ConfigInvalid, SourceInvalid
from spark_ckpt.place import place_of
from spark_ckpt.spark_internals.checkpoint_files import rate_start_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FORMAT = 1
_FILES = ("csv", "json", "parquet")
_OTHER_FILES = ("avro", "binaryfile", "orc", "text", "xml")
_LOGGED = "its offset is a line number of a log inside the checkpoint that names the files, not a place in the input"
_REPLAYABLE = ("rate", "rate-micro-batch", "delta")
_REFUSED = {
    "kafka": ("its offsets need the checks of the connector", "use spark_ckpt_kafka.KafkaSource"),
    "socket": ("it forgets what it has sent", "send the rows to Kafka or to files first"),
    "memory": ("its rows are gone with the driver", "write the rows to files and read them with spark_ckpt_files.FilesSource"),
    **dict.fromkeys(_FILES, (_LOGGED, "use spark_ckpt_files.FilesSource")),
    **dict.fromkeys(
        _OTHER_FILES,
        (
            _LOGGED,
            "write the files as csv, json or parquet and read them with spark_ckpt_files.FilesSource, "
            "or append them to a Delta table and read it with spark_ckpt_delta.DeltaSource",
        ),
    ),
}  # fmt: skip
_RAMPS = ("rampuptime", "rampuptimeseconds")


@checks_arguments({"rowsPerSecond": 'write SparkSource("rate", {"rowsPerSecond": 10})'})
class SparkSource:
    """A Spark source: `SparkSource("rate", {"rowsPerSecond": "10"})`.

    `rate`, `rate-micro-batch` and `delta` yield the same rows at every replay.

    - `delta`: the offset is a table version, and `startingVersion` is a number. `spark_ckpt_delta.DeltaSource` can also
      be drained.
    - `rate`: its start is pinned in the first epoch. `rampUpTime` is refused, since a row's time would then depend on
      the boundaries of batches.
    - Formats that cannot be replayed are refused by name.
    - Any other format needs `replayable=True`. You state two things with it: an offset gives a new
      query the same rows, and the options alone, not the time of the start, define the beginning.

    `options` are as for `DataStreamReader`; `schema` is for formats that need one. Raises `ConfigInvalid`.
    """

    def __init__(
        self,
        format: str,
        options: Mapping[str, str | int | float | bool] | None = None,
        *,
        schema: StructType | str | None = None,
        replayable: bool = False,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._format = format
        self._options = {name: _text(value) for name, value in (options or {}).items()}
        self._schema = schema
        self._clock_ms = clock_ms
        self._asked: TableId | None = None
        _check_format(format, replayable)
        # Spark takes names of options in any case.
        _check_options(self._kind, {name.lower(): value for name, value in self._options.items()})

    @property
    def _kind(self) -> str:
        return self._format.lower()

    @property
    def endless(self) -> str | None:
        """The reason that the source cannot be drained; None for `rate`, whose clock defines its current end."""
        if self._kind == "rate":
            return None
        if self._kind == "rate-micro-batch":
            return "rate-micro-batch has as many batches as one asks for"
        return f"what {self._format} holds at this moment is known to its own reader alone"

    def check(self, spark: SparkSession) -> None:
        """Raise `SourceInvalid` if Spark cannot read the format, or these options, as a stream."""
        self._load(spark)

    def start(self, spark: SparkSession) -> Cursor:
        """Return the cursor of the beginning; for `rate` it is the current time."""
        if self._kind != "rate":
            return self._cursor(None)
        return {**self._cursor("0"), "start_ms": self._clock_ms(), "rows_per_second": self._rows_per_second}

    def read(self, spark: SparkSession, cursor: Cursor) -> DataFrame:
        """Return the stream; the query's checkpoint defines its beginning (`seed`).

        Raises `SourceInvalid` for a foreign cursor.
        """
        self._check_cursor(cursor)
        return self._load(spark)

    def seed(self, cursor: Cursor) -> Seed | None:
        """Return the offset, and for `rate` the time that its seconds count from. None at the beginning."""
        self._check_cursor(cursor)
        offset = cursor["offset"]
        if offset is None:
            return None
        return Seed(str(offset), rate_start_file(_int(cursor["start_ms"])) if self._kind == "rate" else {})

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        """Return Spark's offset from the log, and the values pinned at the start.

        Raises `SourceInvalid` for an offset of several lines.
        """
        # The offset log has one line for a source.
        if "\n" in offset:
            raise SourceInvalid(f"{self._format}: an offset of more than one line cannot be put back")
        return {**previous, "offset": offset}

    def end(self, spark: SparkSession) -> Cursor:
        """Return the current time, which is the end of `rate`; other formats have no known end."""
        return {"format": _FORMAT, "source": self._kind, "now_ms": self._clock_ms()}

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        """Return True if every whole second up to `end` is read; always False for formats other than `rate`."""
        if self._kind != "rate":
            return False
        # An offset of `rate` is the number of whole seconds since its start.
        return _int(cursor["offset"]) >= (_int(end["now_ms"]) - _int(cursor["start_ms"])) // 1000

    def identity(self, spark: SparkSession) -> Mapping[str, str]:
        """Return the format, the path if there is one, and the id of a Delta table on a file system.

        Other options may hold secrets and are left out. Only Spark has the credentials of an object store, so the id of
        a table there is unknown.
        """
        from deltalake.exceptions import DeltaError

        path = next((value for name, value in self._options.items() if name.lower() == "path"), None)
        if path is None:
            return {"kind": self._kind}
        parts = {"kind": self._kind, "path": place_of(path)}
        if self._kind != "delta":
            return parts
        # Kept: it is asked before each commit, and opens the table only if its log is another one.
        self._asked = self._asked or _table_id(path)
        try:
            return parts | {"table id": self._asked.ask() if self._asked is not None else ""}
        except (DeltaError, OSError):
            return parts | {"table id": ""}  # unknown this time, which contradicts no epoch

    def describe(self) -> Mapping[str, str]:
        """Return kind and format; options may hold secrets."""
        return {"kind": self._kind, "format": self._format}

    # -- inside -----------------------------------------------------------------------------------------------------------

    @property
    def _rows_per_second(self) -> str:
        return next((value for name, value in self._options.items() if name.lower() == "rowspersecond"), "1")

    def _cursor(self, offset: str | None) -> dict[str, Json]:
        return {"format": _FORMAT, "source": self._kind, "offset": offset}

    def _load(self, spark: SparkSession) -> DataFrame:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        reader = spark.readStream.format(self._format).options(**self._options)
        try:
            return (reader if self._schema is None else reader.schema(self._schema)).load()
        except (PySparkException, Py4JError) as error:
            raise SourceInvalid(
                f"Spark cannot read {self._format} as a stream: {str(error).splitlines()[0]}"
            ) from error

    def _check_cursor(self, cursor: Cursor) -> None:
        found = (cursor.get("format"), cursor.get("source"))
        if found != (_FORMAT, self._kind):
            raise SourceInvalid(
                f"the epoch's cursor is of {found[1] or 'another kind of source'}, the job reads {self._kind}",
                hint="keep the source that the store was written with, or start with a new store",
            )
        if self._kind == "rate" and cursor.get("rows_per_second") != self._rows_per_second:
            raise SourceInvalid(
                f"rate had rowsPerSecond {cursor.get('rows_per_second')} and has {self._rows_per_second} now: other rows "
                "would stand at the same place",
                hint="keep rowsPerSecond, or start with a new store",
            )


def _check_format(format: str, replayable: bool) -> None:
    kind = format.lower()
    if kind in _REFUSED:
        why, instead = _REFUSED[kind]
        raise ConfigInvalid(f"'{format}' cannot be replayed from an epoch: {why}", hint=instead)
    if kind not in _REPLAYABLE and not replayable:
        raise ConfigInvalid(
            f"it is not known whether '{format}' can be replayed from an offset alone",
            known=", ".join(_REPLAYABLE),
            hint="if the same offset gives the same rows to a new query, say so: SparkSource(..., replayable=True)",
        )


def _check_options(kind: str, options: Mapping[str, str]) -> None:
    """Refuse options that change the rows of a replay."""
    ramp = (
        next((name for name in _RAMPS if options.get(name, "0") not in ("0", "0s")), None) if kind == "rate" else None
    )
    if ramp is not None:
        raise ConfigInvalid(
            "rate with rampUpTime gives rows whose time depends on where batches are cut", hint="leave rampUpTime out"
        )
    if kind != "delta":
        return
    if options.get("startingversion", "").lower() == "latest":
        raise ConfigInvalid(
            "delta: a new start would take startingVersion 'latest' for another version",
            hint='give the version\'s number, or use spark_ckpt_delta.DeltaSource(..., start="latest")',
        )
    if "schematrackinglocation" in options or "schemalocation" in options:
        raise ConfigInvalid(
            "delta: the schema log belongs to one checkpoint, and every start has a fresh one",
            hint="leave schemaTrackingLocation out",
        )


def _table_id(path: str) -> TableId | None:
    """Return the reader of a Delta table's id; None for a table in an object store."""
    from deltalake import DeltaTable

    place = place_of(path)
    if "://" in place:
        return None

    def entry(version: int) -> bytes | None:
        file = Path(place) / "_delta_log" / f"{version:020d}.json"
        return file.read_bytes() if file.exists() else None

    return TableId(lambda: DeltaTable(place), entry)


def _text(value: str | int | float | bool) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)  # Spark writes true and false in lower case


def _int(value: Json) -> int:
    return int(str(value))
