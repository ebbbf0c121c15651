"""Exit of an edge: its segments enter the stream as rows of a JVM memory stream, one file name each.

Each segment is one `add`, so Spark's offset of the stream counts segments. An edge without segments starts no batch.
Tasks read the files. Before Spark plans the next batch, the segments of the last one are added, up to the edge's
limit. The rest follows after later batches.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_ckpt.connector import StagedFile
from spark_ckpt.coordination.edges import Bound
from spark_ckpt.spark_internals.memory_stream import MemoryStream, rows_up_to
from spark_ckpt.store.location import Location
from spark_ckpt.tasks.stage_tasks import segment_reader


@dataclass(slots=True)
class EdgeStream:
    """One edge in one incarnation.

    `waiting`: segments to emit first, those in flight at the epoch that the incarnation continues from. `bound`: rows
    that a batch consumes at most.
    """

    name: str
    location: Location
    schema: StructType
    waiting: Sequence[StagedFile]
    bound: Bound
    rows: int = field(default=0, init=False)
    """Rows on the edge after the last batch."""
    _queue: deque[StagedFile] = field(default_factory=deque, init=False)
    _handed_on: int = field(default=0, init=False)
    _stream: MemoryStream | None = field(default=None, init=False)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows that the edge emits. Call it once."""
        self._stream = MemoryStream(spark)
        self.put(self.waiting)
        return self._stream.frame.mapInArrow(segment_reader(self.name, self.location, self.schema), self.schema)

    def put(self, segments: Iterable[StagedFile]) -> None:
        """Add the segments that a batch wrote; the batch has consumed everything that was handed to Spark before.

        Call it after the batch, on the query's own thread. Raises `RuntimeError` before `read`.
        """
        if self._stream is None:
            raise RuntimeError(f"edge {self.name} is not read")
        new = list(segments)
        self._queue.extend(new)
        # Spark takes everything that is in a memory stream, so the last portion is consumed by now.
        self.rows += sum(each.rows for each in new) - self._handed_on
        portion = [self._queue.popleft() for _ in range(self.bound.portion(self._queue))]
        for segment in portion:
            # Statistics serve readers of tables. Here they would only travel in the plan of each batch.
            self._stream.add(json.dumps({**asdict(segment), "stats": "{}"}))
        self._handed_on = sum(each.rows for each in portion)


def taken_up_to(line: str | None) -> int:
    """Return the number of segments that batches have consumed, from the edge's line in Spark's offset log."""
    return rows_up_to(line)
