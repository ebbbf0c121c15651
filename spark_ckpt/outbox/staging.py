"""One Spark action that stages the rows of every sink, or that discards them.

A sink's rows are a filter and column expressions in SQL text, so that they travel to a Connect server. One struct column
per sink carries them through the plan; it is null if the row is not for the sink. A second action would run the plan,
and its state stores, once more.

Reports come back as rows. Spark returns the rows of one successful attempt per task, so no other attempt counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import pyarrow as pa
from pydantic import ValidationError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_ckpt.connector import SinkRows, StagedFile
from spark_ckpt.epochs.records import STAGED_FILE, StagedFileRecord
from spark_ckpt.errors import EpochDamaged
from spark_ckpt.tasks.rows import ROWS_PER_WRITE
from spark_ckpt.tasks.staging import SinkStage, StageWriter
from spark_ckpt.tasks.worker_process import prepare_worker

_REPORT = "sink string, file string"
Report = tuple[str, str]
"""Name of a sink, and one of its staged files as JSON."""
Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def schema_of(frame: DataFrame, rows: SinkRows) -> StructType:
    """Return the schema of the sink's rows; it runs nothing. Raises Spark's errors for an invalid expression."""
    return frame.selectExpr(*_columns(rows)).schema


@dataclass(frozen=True)
class FrameBatch:
    """A micro-batch as `foreachBatch` gives it: its plan has not run."""

    frame: DataFrame
    number: int

    @property
    def spark(self) -> SparkSession:
        """The batch's session."""
        return self.frame.sparkSession

    def schema(self, sink: str, rows: SinkRows) -> StructType:
        """Return the schema of a sink's rows."""
        return schema_of(self.frame, rows)

    def stage(
        self, sinks: Mapping[str, SinkRows], stages: Sequence[SinkStage], incarnation: int
    ) -> tuple[dict[str, list[StagedFileRecord]], int]:
        """Run the plan; return the staged files of each sink, and `incarnation`, which began before it ran."""
        return stage_rows(self.frame, sinks, stages, self.number), incarnation

    def discard(self) -> None:
        """Run the plan to its end, as Spark needs it for the state of the batch, and drop its rows."""
        # If state stores of the batch are not committed, Spark 4.1 and later end the query
        # (STATE_STORE_COMMIT_VALIDATION_FAILED). Earlier versions go on with a wrong watermark and state.
        # Without the query's columns: a sink may get none of those that Arrow does not take, or that share a name.
        self.frame.selectExpr("1 AS row").mapInArrow(_discarded, _REPORT).collect()


def checked_schema(frame: DataFrame, rows: SinkRows) -> StructType:
    """Return the schema of the sink's rows after Spark has analysed the filter, too; it runs nothing.

    Raises `AnalysisException`.
    """
    if not frame.selectExpr(_struct(rows, 0)).schema:
        raise AssertionError("a struct of no column")
    return schema_of(frame, rows)


def stage_rows(
    frame: DataFrame, sinks: Mapping[str, SinkRows], stages: Sequence[SinkStage], number: int
) -> dict[str, list[StagedFileRecord]]:
    """Run the plan of batch `number` and return the staged files of each sink, in publishing order.

    `stages`: in the order of `sinks`. The files are durable.
    """
    selected = frame.selectExpr(*(_struct(rows, place) for place, rows in enumerate(sinks.values())))
    return reported(sinks, selected.mapInArrow(stager(stages, number), _REPORT).collect())


def reported(sinks: Iterable[str], reports: Iterable[Report]) -> dict[str, list[StagedFileRecord]]:
    """Return the staged files of each sink, in publishing order. Raises `EpochDamaged` for an invalid report."""
    files: dict[str, list[StagedFileRecord]] = {sink: [] for sink in sinks}
    for sink, text in reports:
        files[sink].append(_record(text, sink))
    # Spark collects the tasks' rows in any order; the order of publishing is that of the manifest.
    return {sink: sorted(found, key=lambda file: (file.task, file.part)) for sink, found in files.items()}


def stager(stages: Sequence[SinkStage], number: int) -> Step:
    """Return a step from rows with one struct column per sink to the reports of the staged files."""

    def staged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = write_staged(stages, number, ([_present(column) for column in batch.columns] for batch in batches))
        # With their type: an empty list has none, and Spark takes exactly the declared types.
        columns = [pa.array([each[at] for each in found], pa.string()) for at in range(2)]
        yield pa.RecordBatch.from_arrays(columns, names=["sink", "file"])

    return staged


def write_staged(stages: Sequence[SinkStage], number: int, batches: Iterable[Sequence[pa.RecordBatch]]) -> list[Report]:
    """Stage the rows of one task and report its files. `batches`: each has the rows of every stage, in their order."""
    prepare_worker()
    with ExitStack() as stack:
        buffers = [_Buffer(stack.enter_context(StageWriter(stage, number))) for stage in stages]
        for batch in batches:
            for rows, buffer in zip(batch, buffers, strict=True):
                buffer.add(rows)
        # Closed within the block: an error of one sink deletes the files of all.
        return [
            (stage.sink, json.dumps(asdict(file)))
            for stage, buffer in zip(stages, buffers, strict=True)
            for file in buffer.close()
        ]


def _present(column: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(column.drop_null() if column.null_count else column)


class _Buffer:
    """Rows of one sink, collected to row groups of a useful size."""

    def __init__(self, writer: StageWriter) -> None:
        self._writer = writer
        self._rows: list[pa.RecordBatch] = []
        self._count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._rows.append(rows)
        self._count += rows.num_rows
        if self._count >= ROWS_PER_WRITE:
            self._write()

    def close(self) -> Sequence[StagedFile]:
        self._write()
        return self._writer.close()

    def _write(self) -> None:
        if self._rows:
            self._writer.write(pa.Table.from_batches(self._rows))
        self._rows, self._count = [], 0


def _discarded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    return iter(())


def _columns(rows: SinkRows) -> list[str]:
    named = [f"({expression}) AS {_quoted(name)}" for name, expression in rows.named.items()]
    return [*rows.columns, *named] or ["*"]


def _struct(rows: SinkRows, place: int) -> str:
    struct = f"struct({', '.join(_columns(rows))})"
    # CASE without ELSE is null, also if the condition is null.
    chosen = struct if rows.where is None else f"CASE WHEN ({rows.where}) THEN {struct} END"
    return f"{chosen} AS s{place}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _record(text: str, sink: str) -> StagedFileRecord:
    try:
        return STAGED_FILE.validate_json(text)
    except ValidationError as error:
        raise EpochDamaged("a task reported a file that no manifest can name", sink=sink) from error
