"""Staging: tasks write a sink's rows as uniquely named Parquet files, durable before the task succeeds (phase one).

Files become visible only when a manifest names them. A failed attempt, a repeated run of the function or a zombie task
leaves only garbage, which retention deletes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext

from spark_ckpt.connector import StagedFile, StagePlan
from spark_ckpt.coordination.reports import EDGE
from spark_ckpt.errors import CkptError
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.tasks.failures import OutputInvalid, bounded
from spark_ckpt.tasks.file_statistics import delta_statistics
from spark_ckpt.tasks.reports import Reports
from spark_ckpt.tasks.rows import ROWS_PER_WRITE, Int64s

if TYPE_CHECKING:
    from spark_ckpt.store.location import DurableOutput, Location
    from spark_ckpt.tasks.rows import ChunkedArray, Field

_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_FOLDER = 200  # without a digest's digits; file systems allow names of up to 255 bytes


@dataclass(frozen=True, slots=True)
class SinkStage:
    """One sink's plan and the location of its files; shipped to tasks.

    `edge` is True for rows that go to an edge of the job's graph.
    """

    sink: str
    plan: StagePlan
    location: Location
    incarnation: int
    edge: bool = False

    @property
    def scope(self) -> str:
        """Scope of this sink's or edge's reports."""
        return f"{EDGE}{self.sink}" if self.edge else self.sink


@dataclass(slots=True)
class _OpenFile:
    path: str
    output: DurableOutput
    writer: pq.ParquetWriter
    lane: int
    part: int
    partition_values: Mapping[str, str | None]
    rows: int = 0


class StageWriter:
    """Writes one task's files for one sink. Use it as a context manager: an error deletes the files."""

    def __init__(self, stage: SinkStage, batch: int) -> None:
        self._stage = stage
        self._batch = batch
        task = TaskContext.get()
        self._task = task.partitionId() if task else 0
        self._files: dict[tuple[int, tuple[str | None, ...]], _OpenFile] = {}  # by lane and partition values

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            # Best effort: a file that stays is garbage that retention finds by its name.
            for file in self._files.values():
                with suppress(pa.ArrowException, OSError, ValueError, CkptError):
                    file.writer.close()  # otherwise garbage collection closes it, on an aborted output
                file.output.abort()

    def write(self, rows: pa.Table) -> None:
        """Append rows in order, each to the file of its shard (`lane`) and partition values.

        Raises `OutputInvalid` for rows that do not fit the sink's types or that the sink refuses.
        """
        plan = self._stage.plan
        if not rows.num_rows:
            return
        for values, part in by_partition(rows, plan.partition_by):
            fitted = self._fitted(part)
            self._check_rows(fitted)  # after the cast: the sink judges the values that it would get
            # Rows of one key stay in one shard, so that the order of a key's rows is kept by one publisher.
            for lane, share in _by_lane(fitted, plan.lanes, plan.lane_by):
                # One file for each lane and partition of a task, open until its end: a file per batch of rows would be small.
                file = self._files.get((lane, values)) or self._open(lane, values, share.schema)
                file.writer.write_table(share, row_group_size=ROWS_PER_WRITE)
                file.rows += share.num_rows

    def close(self) -> list[StagedFile]:
        """Make every file durable and return the staged files."""
        staged = [self._close(file) for file in self._files.values()]
        if staged:
            hit(Failpoint.STAGED)
        return staged

    def _fitted(self, rows: pa.Table) -> pa.Table:
        """Cast the rows to the sink's types. Raises `OutputInvalid` with the column that does not fit."""
        plan = self._stage.plan
        # Delta's layout: a file lacks its partition columns.
        kept = pa.schema([field for field in plan.schema or rows.schema if field.name not in plan.partition_by])
        try:
            return rows.select(kept.names).cast(kept)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            for field in kept:
                # the error of the whole table names no column; the first one that fails alone is the culprit
                self._check_column(rows, field)
            raise OutputInvalid(f"rows do not fit sink {self._stage.sink!r}: {bounded(str(error))}") from error

    def _check_rows(self, rows: pa.Table) -> None:
        """Raises `OutputInvalid` for a row that the sink's plan refuses."""
        plan = self._stage.plan
        refused = plan.refuses(rows) if plan.refuses is not None else None
        if refused is not None:
            has = refused.column in rows.column_names
            value = rows.column(refused.column)[refused.row].as_py() if has else None
            raise OutputInvalid(
                f"sink {self._stage.sink!r} takes no row whose column {refused.column!r} is {bounded(value)}: {refused.why}",
                sink=self._stage.sink,
                column=refused.column,
                hint=refused.hint or "filter the rows that cannot be written",
            )

    def _check_column(self, rows: pa.Table, field: Field) -> None:
        try:
            rows.select([field.name]).cast(pa.schema([field]))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise OutputInvalid(
                f"column {field.name!r} ({rows.schema.field(field.name).type}) cannot be written as"
                f" {field.type}{'' if field.nullable else ' without nulls'}: {bounded(str(error))}",
                sink=self._stage.sink,
                column=field.name,
                hint="cast the column, or filter the rows that cannot be written",
            ) from error

    def _open(self, lane: int, values: tuple[str | None, ...], schema: pa.Schema) -> _OpenFile:
        # `part` is the file's place among those of the task: files are published by batch, task, part.
        stage, part = self._stage, len(self._files)
        named = dict(zip(stage.plan.partition_by, values, strict=True))
        folder = "".join(f"{_folder(name, value)}/" for name, value in named.items())
        # unique for each attempt: a repeated task never overwrites a file that a manifest names
        name = f"ckpt-{stage.sink}-i{stage.incarnation}-b{self._batch}-t{self._task}-{part}-{uuid.uuid4().hex}.parquet"
        output = stage.location.open_output(folder + name)
        plan = stage.plan
        writer = pq.ParquetWriter(
            output, schema, compression=plan.compression, use_dictionary=plan.dictionary, write_page_checksum=True
        )
        file = self._files[(lane, values)] = _OpenFile(folder + name, output, writer, lane, part, named)
        return file

    def _close(self, file: _OpenFile) -> StagedFile:
        # Step 4 of docs/design/epoch-in-nine-steps.md.
        file.writer.close()  # writes the footer, a part of the size
        size = file.output.tell()
        file.output.close()
        statistics = delta_statistics(file.writer, file.rows)
        return StagedFile(
            file.path,
            size,
            file.rows,
            file.lane,
            self._batch,
            self._task,
            file.part,
            file.partition_values,
            statistics,
            file.output.sha256,
        )


def _folder(name: str, value: str | None) -> str:
    """Return a readable folder name; the manifest holds the exact value."""
    text = f"{quote(name, safe='')}={_NULL_PARTITION if value is None else quote(value, safe='')}"
    return (
        text if len(text) <= _LONGEST_FOLDER else f"{text[:_LONGEST_FOLDER]}-{sha256(text.encode()).hexdigest()[:16]}"
    )


def running_batch() -> int:
    """Return the number of the task's micro-batch; 0 outside of Spark."""
    task = TaskContext.get()
    # Spark's own property of the job: a batch that runs again has the same number.
    return int(task.getLocalProperty("streaming.sql.batchId") or 0) if task else 0


@contextmanager
def staging(stages: Sequence[SinkStage], batch: int, reports: Reports) -> Iterator[Callable[[pa.Table], None]]:
    """Open one task's files for all `stages` and return a function that writes a table to each of them.

    At the end the files are durable and reported. An error deletes them.
    """
    with ExitStack() as stack:
        writers = [stack.enter_context(StageWriter(stage, batch)) for stage in stages]

        def write(table: pa.Table) -> None:
            for writer in writers:
                writer.write(table)

        yield write
        # Spark delivers reports only with the task's success, so a failure of a later sink takes these along.
        for stage, writer in zip(stages, writers, strict=True):
            for file in writer.close():
                reports.send("tap", stage.scope, asdict(file))


def by_partition(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
    """Yield the rows of each combination of values, as texts, without these columns."""
    if not columns:
        yield (), rows
        return
    codes, combinations = np.zeros(rows.num_rows, dtype=np.int64), 1
    texts = []
    for column in columns:
        text = pc.cast(rows.column(column), pa.string()).combine_chunks().dictionary_encode()
        none = len(text.dictionary)
        combinations *= none + 1
        if combinations >= 1 << 63:
            # The next code would overflow, and two combinations would share a file.
            codes, distinct = pd.factorize(codes)
            combinations = len(distinct) * (none + 1)
        # mixed radix: one code per combination of partition values, with a digit of its own for null
        codes = codes * (none + 1) + pc.fill_null(text.indices, none).to_numpy(zero_copy_only=False)
        texts.append(text)
    data = rows.drop_columns(list(columns))
    numbers, found = pd.factorize(codes)  # found: one code of each combination
    # One stable sort for all values, which is a radix sort for the smallest type. A comparison of all rows with each value took
    # ten times as long for a thousand values (measured).
    order = np.argsort(numbers.astype(np.min_scalar_type(len(found))), kind="stable")
    if len(found) > 1:
        data = data.take(pa.array(order))
    ends = np.cumsum(np.bincount(numbers))
    for first, end in zip([0, *ends], ends, strict=False):
        yield tuple(text[order[first]].as_py() for text in texts), data.slice(first, end - first)


def _by_lane(rows: pa.Table, lanes: int, column: str | None) -> Iterator[tuple[int, pa.Table]]:
    if lanes == 1 or column is None:
        yield 0, rows
        return
    lane = lane_of(rows.column(column), lanes)
    for number in range(lanes):
        at = np.flatnonzero(lane == number)
        if len(at):
            yield number, rows.take(pa.array(at))


def lane_of(keys: ChunkedArray, lanes: int) -> Int64s:
    """Return the shard of every key, in [0, lanes): a hash that is equal in every process. Nulls go to shard 0."""
    # Python's own hash of a text differs from process to process, and equal keys must meet in one shard.
    encoded = keys.combine_chunks().dictionary_encode()
    hashes = pd.util.hash_array(
        np.array([str(key) for key in encoded.dictionary.to_pylist()], dtype=object), categorize=False
    )
    # The entry after the last text is that of null.
    by_code = np.append(hashes % np.uint64(lanes), np.uint64(0)).astype(np.int64)
    codes: Int64s = pc.fill_null(encoded.indices, len(by_code) - 1).to_numpy(zero_copy_only=False)
    lane: Int64s = by_code[codes]
    return lane
