"""Where an edge's rows come back into the stream: its segments enter as rows of a JVM memory stream, each its file's name.

Every segment is one `add`, so Spark's offset of the stream counts segments, and a batch that has none for it is left out.
Tasks read the files. What a batch has put on an edge is added before Spark plans the next one, up to the edge's bound; what is
beyond it follows behind later batches.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from spark_ckpt.connector import StagedFile
from spark_ckpt.coordination.edges import Bound
from spark_ckpt.spark_internals.memory_stream import MemoryStream, rows_up_to
from spark_ckpt.tasks.stage_tasks import segment_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_ckpt.store.location import Location


@dataclass(slots=True)
class EdgeStream:
    """One edge in one incarnation. `waiting`: segments that are to come out first, those in flight at the cut it begins at."""

    name: str
    location: Location
    schema: StructType
    waiting: Sequence[StagedFile]
    bound: Bound
    rows: int = field(default=0, init=False)
    """On the edge behind the batch that ran last."""
    _queue: deque[StagedFile] = field(default_factory=deque, init=False)
    _handed_on: int = field(default=0, init=False)
    _stream: MemoryStream | None = field(default=None, init=False)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows that come out. To be called once."""
        self._stream = MemoryStream(spark)
        self.put(self.waiting)
        return self._stream.frame.mapInArrow(segment_reader(self.name, self.location, self.schema), self.schema)

    def put(self, segments: Iterable[StagedFile]) -> None:
        """Behind a batch, which has taken off all that was handed on before: what it has put on. On the query's own thread."""
        if self._stream is None:
            raise RuntimeError(f"edge {self.name} is not read")
        new = list(segments)
        self._queue.extend(new)
        self.rows += sum(each.rows for each in new) - self._handed_on
        portion = [self._queue.popleft() for _ in range(self.bound.portion(self._queue))]
        for segment in portion:
            self._stream.add(json.dumps({**asdict(segment), "stats": "{}"}))
        self._handed_on = sum(each.rows for each in portion)


def taken_up_to(line: str | None) -> int:
    """How many segments batches have consumed, from the edge's line in Spark's offset log."""
    return rows_up_to(line)
