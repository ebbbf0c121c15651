"""Consistent, restorable, queryable epochs and exactly-once output for PySpark Structured Streaming."""

from spark_ckpt.connector import Cursor, EpochOutput, Publisher, PublishReceipt, Sink, SinkContext, Source, StagedFile, StagePlan
from spark_ckpt.errors import CkptError
from spark_ckpt.job import Job
from spark_ckpt.listener import EpochEvent, IncarnationEvent, RunListener
from spark_ckpt.protocol.ids import Epoch, Incarnation
from spark_ckpt.runtime.aggregations import Aggregate, count, first, last, max, mean, min, stddev, sum  # noqa: A004 - Spark's names
from spark_ckpt.runtime.run import Run
from spark_ckpt.runtime.vectorized import KeyBatch, KeyResult
from spark_ckpt.session import session
from spark_ckpt.stream import GroupedStream, Stream

__all__ = [
    "Aggregate",
    "CkptError",
    "Cursor",
    "Epoch",
    "EpochEvent",
    "EpochOutput",
    "GroupedStream",
    "Incarnation",
    "IncarnationEvent",
    "Job",
    "KeyBatch",
    "KeyResult",
    "PublishReceipt",
    "Publisher",
    "Run",
    "RunListener",
    "Sink",
    "SinkContext",
    "Source",
    "StagePlan",
    "StagedFile",
    "Stream",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "session",
    "stddev",
    "sum",
]
