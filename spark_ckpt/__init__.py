"""Consistent, restorable, queryable epochs and exactly-once output for PySpark Structured Streaming.

Names are loaded when they are first used: executors and the command line do not pay for what they do not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_ckpt.connector import (
        Cursor,
        EpochOutput,
        Publisher,
        PublishReceipt,
        Sink,
        SinkContext,
        Source,
        StagedFile,
        StagePlan,
    )
    from spark_ckpt.errors import CkptError
    from spark_ckpt.grouped import CoGroupedStreams, GroupedStream
    from spark_ckpt.job import Job
    from spark_ckpt.listener import EpochEvent, IncarnationEvent, OutageEvent, RunListener
    from spark_ckpt.protocol.ids import Epoch, Incarnation
    from spark_ckpt.runtime.aggregations import Aggregate, count, first, last, max, mean, min, stddev, sum
    from spark_ckpt.runtime.run import Run
    from spark_ckpt.runtime.vectorized import KeyBatch, KeyResult
    from spark_ckpt.spark_session import session
    from spark_ckpt.spark_source import SparkSource
    from spark_ckpt.state import read_state, state_frame, state_version
    from spark_ckpt.stream import Stream

_HOME = {
    "connector": (
        "Cursor", "EpochOutput", "PublishReceipt", "Publisher", "Sink", "SinkContext", "Source", "StagePlan", "StagedFile",
    ),
    "errors": ("CkptError",),
    "grouped": ("CoGroupedStreams", "GroupedStream"),
    "job": ("Job",),
    "listener": ("EpochEvent", "IncarnationEvent", "OutageEvent", "RunListener"),
    "protocol.ids": ("Epoch", "Incarnation"),
    "runtime.aggregations": ("Aggregate", "count", "first", "last", "max", "mean", "min", "stddev", "sum"),
    "runtime.run": ("Run",),
    "runtime.vectorized": ("KeyBatch", "KeyResult"),
    "spark_session": ("session",),
    "spark_source": ("SparkSource",),
    "state": ("read_state", "state_frame", "state_version"),
    "stream": ("Stream",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Aggregate",
    "CkptError",
    "CoGroupedStreams",
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
    "OutageEvent",
    "PublishReceipt",
    "Publisher",
    "Run",
    "RunListener",
    "Sink",
    "SinkContext",
    "Source",
    "SparkSource",
    "StagePlan",
    "StagedFile",
    "Stream",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "read_state",
    "session",
    "state_frame",
    "state_version",
    "stddev",
    "sum",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'spark_ckpt' has no attribute {name!r}")
    value = getattr(import_module(f"spark_ckpt.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
