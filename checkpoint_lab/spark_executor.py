"""The executor of real Spark: each process is a streaming query, its edges are Parquet files, its records Delta tables.

- The driver adds one row to the query's stream for each micro-batch: the segment files, and whether a marker follows.
  Tasks read the files. `applyInPandasWithState` numbers the rows of each key, and a marker makes each key report its state.
- A record and the operator's snapshot are one commit of the process's Delta table. A later version of a record, or its
  erasure, is a later row.
- A new incarnation is a new query with an empty Spark checkpoint. The first row of its stream holds the snapshot.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from checkpoint_lab.executor import KEYS, Batch, Executor, KeyState, Row, Saved, Snapshot, number_row
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.recovery import Key
from spark_ckpt.spark_internals.memory_stream import MemoryStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.state import GroupState

PARTITIONS = "spark.sql.shuffle.partitions"
ROW = pa.schema([("key", "string"), ("item", "string"), ("sent", "int64"), ("number", "int64"), ("chain", "int64")])
IN = "kind string, place long, key string, item string, sent long, number long, chain long"
STATE = "number long, chain long"
RECORD = pa.schema(
    [
        ("at", pa.int64()),
        ("id", pa.string()),
        ("framed", pa.string()),
        ("keys", pa.string()),
        ("results", pa.list_(pa.string())),
    ]
)
"""One version of a record: `framed` is null if it was erased, `keys` and `results` if it is no checkpoint."""
BEGIN, TAKE, MARK = "begin", "take", "mark"


def read_segments(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Return the rows of each micro-batch: the state to begin with, those of its files, a marker per key. In tasks."""
    for frame in frames:
        for text in frame["value"]:
            asked = json.loads(text)
            # place -1 sorts before every segment, that of a marker after all of them
            rows = [(BEGIN, -1, key, "", 0, number, chain) for key, number, chain in asked["begin"]]
            # `place` keeps the order of the segments: Spark may deliver a key's rows of one micro-batch in any order.
            for place, file in enumerate(asked["files"]):
                rows += [(TAKE, place, *row.values()) for row in pq.read_table(file).to_pylist()]
            if asked["marked"]:
                rows += [(MARK, len(asked["files"]), key, "", 0, 0, 0) for key in KEYS]
            yield pd.DataFrame(rows, columns=["kind", "place", *ROW.names])


def run_operator(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Number the rows of one key in the order of their segments; answer a marker with the state. In tasks."""
    known = KeyState(key[0], *state.get) if state.exists else KeyState(key[0])
    out: list[tuple[str, int, str, str, int, int, int]] = []
    # Spark may hand in a key in several frames; a stable sort keeps the rows of one segment in the order of its file
    arrived = pd.concat(list(frames)).sort_values("place", kind="stable")
    for kind, place, *fields in arrived.itertuples(index=False, name=None):
        row = Row(*fields)
        if kind == BEGIN:
            known = KeyState(row.key, row.number, row.chain)
        elif kind == TAKE:
            known, result = number_row(known, row)
            out.append((kind, place, *result))
        # a key that had no row has no state to report, as in `MemoryExecutor`
        elif known.number:
            out.append((kind, place, known.key, "", 0, known.number, known.chain))
    state.update((known.number, known.chain))
    yield pd.DataFrame(out, columns=["kind", "place", *ROW.names])


class _Operator:
    """The query of one incarnation of a process."""

    def __init__(self, spark: SparkSession, name: str, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._stream = MemoryStream(spark)
        self._results: list[tuple[str, int, Row]] = []
        rows = self._stream.frame.mapInPandas(read_segments, IN)
        numbered = rows.groupBy("key").applyInPandasWithState(run_operator, IN, STATE, "append", "NoTimeout")
        writer = numbered.writeStream.queryName(name).outputMode("append").foreachBatch(self._collect)
        before = spark.conf.get(PARTITIONS, "200")
        # a query keeps the number that it starts with: a segment has two rows
        spark.conf.set(PARTITIONS, "1")
        try:
            self._query: StreamingQuery = writer.option("checkpointLocation", str(checkpoint)).start()
        finally:
            spark.conf.set(PARTITIONS, str(before))

    def _collect(self, batch: DataFrame, number: int) -> None:
        self._results = [(kind, place, Row(*fields)) for kind, place, *fields in batch.collect()]

    def run(self, begin: Sequence[KeyState], files: Sequence[str], marked: bool) -> Batch:
        """Run one micro-batch and return its results."""
        self._results = []
        self._stream.add(json.dumps({"begin": begin, "files": files, "marked": marked}))
        # returns when the batch has ended, so `_collect` has its rows then
        self._query.processAllAvailable()
        outputs: list[list[Row]] = [[] for _ in files]
        # the shuffle mixes keys; a segment has them in order, and the rows of one key are in order already
        for kind, place, row in sorted(self._results, key=lambda each: each[2].key):
            if kind == TAKE:
                outputs[place].append(row)
        marks = [row for kind, _, row in self._results if kind == MARK]
        return Batch(outputs, tuple(sorted(KeyState(row.key, row.number, row.chain) for row in marks)))

    def stop(self) -> None:
        """Stop the query and delete its Spark checkpoint: nothing of it stays."""
        self._query.stop()
        shutil.rmtree(self._checkpoint, ignore_errors=True)


class SparkExecutor(Executor):
    """Runs operators in streaming queries of one session. Everything durable is below `folder`, which is new."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._numbers = count()
        self._operators: dict[ProcessId, _Operator] = {}
        for part in ("edges", "runs", "records", "sinks"):
            (folder / part).mkdir(parents=True)

    def begin(self, process: ProcessId, keys: Sequence[KeyState]) -> None:
        """Start a query; its first micro-batch loads the state."""
        if process in self._operators:
            self.kill(process)
        name = f"{process}-{next(self._numbers)}"
        operator = self._operators[process] = _Operator(self._spark, name, self._folder / "runs" / name)
        if keys:
            operator.run(keys, [], marked=False)

    def run(self, process: ProcessId, segments: Sequence[str], marked: bool) -> Batch:
        """Run one micro-batch of the process's query."""
        return self._operators[process].run([], [str(self._file(each)) for each in segments], marked)

    def kill(self, process: ProcessId) -> None:
        """Stop the query and delete its checkpoint."""
        self._operators.pop(process).stop()

    def close(self) -> None:
        """Stop all queries."""
        for process in list(self._operators):
            self.kill(process)

    def write(self, segment: str, rows: Sequence[Row]) -> None:
        """Write a Parquet file, whole or not at all."""
        file = self._file(segment)
        if not file.exists():
            part = file.with_suffix(".part")
            pq.write_table(pa.Table.from_pylist([row._asdict() for row in rows], ROW), part)
            part.rename(file)

    def read(self, segment: str) -> Sequence[Row]:
        """Return the rows of a Parquet file."""
        return [Row(**row) for row in pq.read_table(self._file(segment)).to_pylist()]

    def _file(self, segment: str) -> Path:
        return self._folder / "edges" / f"{segment.replace('>', '-')}.parquet"

    def save(self, process: ProcessId, key: Key, saved: Saved) -> None:
        """Append the record and its snapshot to the process's Delta table."""
        keys = json.dumps(saved.snapshot.keys) if saved.snapshot else None
        results = list(saved.snapshot.results) if saved.snapshot else None
        self._append(process, [(key, saved.framed, keys, results)])

    def erase(self, process: ProcessId, keys: Iterable[Key]) -> None:
        """Append an erasure per record."""
        self._append(process, [(key, None, None, None) for key in keys])

    def _append(
        self, process: ProcessId, versions: Sequence[tuple[Key, str | None, str | None, list[str] | None]]
    ) -> None:
        if versions:
            rows = [
                dict(zip(RECORD.names, (next(self._numbers), json.dumps(key), *rest), strict=True))
                for key, *rest in versions
            ]
            write_deltalake(self._folder / "records" / process, pa.Table.from_pylist(rows, RECORD), mode="append")

    def load(self, process: ProcessId) -> Mapping[Key, Saved]:
        """Return the newest version of each record that is not erased."""
        place = self._folder / "records" / process
        found: dict[Key, Saved | None] = {}
        for row in _rows_of(place):
            snapshot = None
            if row["keys"] is not None:
                keys = tuple(KeyState(*each) for each in json.loads(str(row["keys"])))
                snapshot = Snapshot(keys, tuple(row["results"]))
            found[tuple(json.loads(str(row["id"])))] = Saved(row["framed"], snapshot) if row["framed"] else None
        return {key: saved for key, saved in found.items() if saved}

    def show(self, sink: ProcessId, rows: Sequence[Row]) -> None:
        """Append the rows to the sink's Delta table."""
        placed = pa.Table.from_pylist([row._asdict() for row in rows], ROW)
        numbers = pa.array([next(self._numbers) for _ in rows], pa.int64())
        write_deltalake(self._folder / "sinks" / sink, placed.append_column("at", numbers), mode="append")

    def shown(self, sink: ProcessId) -> Sequence[Row]:
        """Return the rows of the sink's Delta table."""
        rows = _rows_of(self._folder / "sinks" / sink)
        return [Row(**{name: row[name] for name in ROW.names}) for row in rows]


def _rows_of(table: Path) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(str(table)):
        return []
    rows: list[dict[str, Any]] = pa.table(DeltaTable(table).scan().read_all()).to_pylist()
    # a scan returns the files of a Delta table in any order
    return sorted(rows, key=lambda row: int(row["at"]))
