"""Rejected rows: records that cannot be parsed leave the stream here.

They are counted and, on request, staged for a side table.

They travel to the next Python step in the hidden column `ckpt_reject`. That step is the packing before an operator or
the staging of a stateless job. It is a separate step if the user's next operation would lose the column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructType

from spark_ckpt.coordination.reports import FILE
from spark_ckpt.spark_internals.column_names import map_in_arrow
from spark_ckpt.tasks.reports import Reports
from spark_ckpt.tasks.rows import REJECT
from spark_ckpt.tasks.staging import SinkStage, StageWriter, running_batch

REJECTED = "rejected"
"""Name of the side output, and of its sink in the store."""

REJECTED_SCHEMA = StructType().add("reason", StringType()).add("position", StringType()).add("record", StringType())
_ARROW = pa.schema([("reason", pa.string()), ("position", pa.string()), ("record", pa.string())])


@dataclass(frozen=True, slots=True)
class Diverter:
    """Removes the rejected rows from a task's batches. With `stage` None they are only counted."""

    reports: Reports
    stage: SinkStage | None
    step: int

    def divert(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the valid rows without the hidden column; report the rejected ones at the end."""
        rejected = 0
        with nullcontext() if self.stage is None else StageWriter(self.stage, running_batch()) as writer:
            for batch in batches:
                column = batch.column(REJECT)
                # Most batches reject nothing, and a filter would copy them.
                if column.null_count < len(column):
                    texts = column.drop_null()
                    rejected += len(texts)
                    # Now, not at the end: a task may reject every one of its records, and would keep all of them in memory.
                    if writer is not None:
                        writer.write(rejected_table(texts.to_pylist()))
                    batch = batch.filter(pc.is_null(column))
                yield batch.drop_columns([REJECT])
            if rejected:
                # With the step: a partition may pass several diverters in one batch, and each of them counts.
                self.reports.send("input", f"{REJECTED}/{self.step}", {"rejected": rejected})
            for file in [] if writer is None else writer.close():
                self.reports.send("input", f"{REJECTED}/{self.step}{FILE}", asdict(file))


def rejected_table(rejected: list[str]) -> pa.Table:
    """Build rows for the side table (reason, position, record) from the hidden column's JSON texts."""
    rows = []
    for text in rejected:
        fields = json.loads(text)
        reason, record = str(fields.pop("reason", "")), fields.pop("record", None)
        rows.append({"reason": reason, "position": json.dumps(fields, sort_keys=True), "record": record})
    return pa.Table.from_pylist(rows, _ARROW)


# Set while the driver builds a plan that runs; a template of the same graph is built without it.
_building: ContextVar[Callable[[], Diverter] | None] = ContextVar("ckpt_diverter", default=None)


def diverting_with(make: Callable[[], Diverter], build: Callable[[], DataFrame]) -> DataFrame:
    """Build a plan whose `divert_rejects` steps report through `make()`."""
    token = _building.set(make)
    try:
        return build()
    finally:
        _building.reset(token)


def divert_rejects(frame: DataFrame) -> DataFrame:
    """Add a step that removes rejected rows. On a template, outside of `diverting_with`, it only drops the column."""
    make = _building.get()
    if make is None or REJECT not in frame.columns:
        return frame.drop(REJECT)
    return map_in_arrow(frame, make().divert, frame.drop(REJECT).schema)
