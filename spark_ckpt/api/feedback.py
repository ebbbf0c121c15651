"""Loops: a stream that later streams of the job feed. Rows come out one micro-batch after they go in."""

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
    """The output of a loop, as a stream like any other. `close` sets its input."""

    def __init__(self, job: Job, edge: EdgeNode) -> None:
        super().__init__(job, edge, streaming_template(job.spark, edge.schema))
        self._edge = edge
        self._closed = False

    def close(self, stream: Stream) -> None:
        """Feed the rows of `stream` into the loop. Its columns are the loop's, by name.

        A row that comes out is never in one batch with the row that it is made from. So a loop ends when an operator or
        a filter in it lets no row pass. The rows in the loop at a barrier are part of the epoch.

        Raises `GraphInvalid` for a second `close`, and for a stream with other columns or types.
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
        # In the order of the loop's columns, which its segments have.
        self._job._bind_edge(self._edge, stream.select(*map(column_of, self.columns))._node)


def _columns(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}
