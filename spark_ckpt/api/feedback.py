"""Loops: a stream that a job's later streams feed. What is put in comes out one micro-batch later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from spark_ckpt.api.stream import Stream
from spark_ckpt.errors import GraphInvalid
from spark_ckpt.plan.graph import EdgeNode
from spark_ckpt.spark_internals.column_names import column_of
from spark_ckpt.spark_internals.plans import streaming_template

if TYPE_CHECKING:
    from spark_ckpt.api.job import Job


class Feedback(Stream):
    """What comes round a loop, as a stream like any other. `close` says what goes in."""

    def __init__(self, job: Job, edge: EdgeNode) -> None:
        super().__init__(job, edge, streaming_template(job.spark, edge.schema))
        self._edge = edge
        self._closed = False

    def close(self, stream: Stream) -> None:
        """The rows of `stream` come round. Its columns are the loop's, by name.

        A row that comes round is in no batch with the row that it comes from, so a loop ends when an operator or a filter in it
        lets nothing pass any more. What the loop holds at a barrier is part of the epoch. Raises `GraphInvalid`.
        """
        if self._closed:
            raise GraphInvalid(
                f"feedback '{self._edge.name}' is closed already", hint="unite the streams, then close it with one"
            )
        given, wanted = _columns(stream.schema), _columns(self.schema)
        if given.keys() != wanted.keys() or any(given[name] != wanted[name] for name in wanted):
            raise GraphInvalid(
                f"feedback '{self._edge.name}' has {self.schema.simpleString()}, the stream that closes it"
                f" {stream.schema.simpleString()}",
                hint="select and cast its columns",
            )
        self._closed = True
        self._job._bind_edge(self._edge, stream.select(*map(column_of, self.columns))._node)


def _columns(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}
