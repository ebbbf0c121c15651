"""Where an edge's rows come back into the stream: its segments enter as rows of a JVM memory stream, each its file's name.

Every segment is one `add`, so Spark's offset of the stream counts segments, and a batch that has none for it is left out.
Tasks read the files. What a batch has put on an edge is added before Spark plans the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from spark_ckpt.connector import StagedFile
from spark_ckpt.spark_private.memory_stream import MemoryStream, rows_up_to
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
    _stream: MemoryStream | None = field(default=None, init=False)

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows that come out. To be called once."""
        self._stream = MemoryStream(spark)
        self.put(self.waiting)
        return self._stream.frame.mapInArrow(segment_reader(self.name, self.location, self.schema), self.schema)

    def put(self, segments: Iterable[StagedFile]) -> None:
        """The next segments, in order. On the query's own thread."""
        if self._stream is None:
            raise RuntimeError(f"edge {self.name} is not read")
        for segment in segments:
            self._stream.add(json.dumps({**asdict(segment), "stats": "{}"}))


def taken_up_to(line: str | None) -> int:
    """How many segments batches have consumed, from the edge's line in Spark's offset log."""
    return rows_up_to(line)
