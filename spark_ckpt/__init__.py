"""Consistent, restorable, queryable epochs and exactly-once output for PySpark Structured Streaming.

Names are loaded at their first use, so that executors and the command line load only what they need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_ckpt.api.grouped import CoGroupedStreams, GroupedStream
    from spark_ckpt.api.job import Job
    from spark_ckpt.api.spark_source import SparkSource
    from spark_ckpt.api.state import read_state, state_frame, state_version
    from spark_ckpt.api.stream import Stream
    from spark_ckpt.connector import SinkRows
    from spark_ckpt.driver.run import Run
    from spark_ckpt.driver.stages_run import StagesRun
    from spark_ckpt.errors import CkptError
    from spark_ckpt.events.listener import (
        EpochEvent,
        IncarnationEvent,
        LagEvent,
        LineEvent,
        MaintenanceEvent,
        OutageEvent,
        ProgressEvent,
        RetryEvent,
        RunListener,
        StandbyEvent,
    )
    from spark_ckpt.outbox.data_source import OutboxDataSource
    from spark_ckpt.outbox.outbox import Outbox
    from spark_ckpt.program_edges.edge import Edge
    from spark_ckpt.spark_session.session import session
    from spark_ckpt.tasks.operators.aggregations import Aggregate, avg, count, first, last, max, mean, min, stddev, sum
    from spark_ckpt.tasks.operators.vectorized import KeyBatch, KeyResult

_HOME = {
    "connector": ("SinkRows",),
    "errors": ("CkptError",),
    "outbox.data_source": ("OutboxDataSource",),
    "outbox.outbox": ("Outbox",),
    "api.grouped": ("CoGroupedStreams", "GroupedStream"),
    "api.job": ("Job",),
    "events.listener": (
        "EpochEvent", "IncarnationEvent", "LagEvent", "LineEvent", "OutageEvent", "ProgressEvent", "RetryEvent", "RunListener",
        "StandbyEvent", "MaintenanceEvent",
    ),
    "tasks.operators.aggregations": ("Aggregate", "avg", "count", "first", "last", "max", "mean", "min", "stddev", "sum"),
    "driver.run": ("Run",),
    "driver.stages_run": ("StagesRun",),
    "tasks.operators.vectorized": ("KeyBatch", "KeyResult"),
    "spark_session.session": ("session",),
    "api.spark_source": ("SparkSource",),
    "program_edges.edge": ("Edge",),
    "api.state": ("read_state", "state_frame", "state_version"),
    "api.stream": ("Stream",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Aggregate",
    "CkptError",
    "CoGroupedStreams",
    "Edge",
    "EpochEvent",
    "GroupedStream",
    "IncarnationEvent",
    "Job",
    "KeyBatch",
    "KeyResult",
    "LagEvent",
    "LineEvent",
    "MaintenanceEvent",
    "OutageEvent",
    "Outbox",
    "OutboxDataSource",
    "ProgressEvent",
    "RetryEvent",
    "Run",
    "RunListener",
    "SinkRows",
    "SparkSource",
    "StagesRun",
    "StandbyEvent",
    "Stream",
    "__version__",
    "avg",
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


_OF_CONNECTORS = (
    "Cursor", "Epoch", "EpochOutput", "Incarnation", "PublishReceipt", "Publisher", "Sink", "SinkContext", "Source",
    "StagePlan", "StagedFile",
)  # fmt: skip
_OF_PACKAGES = {
    "DeltaSink": "spark_ckpt_delta",
    "DeltaSource": "spark_ckpt_delta",
    "FilesSource": "spark_ckpt_files",
    "KafkaSink": "spark_ckpt_kafka",
    "KafkaSource": "spark_ckpt_kafka",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("spark-ckpt")
    module = _MODULE_OF.get(name)
    if module is None:
        raise _missing(name)
    try:
        value = getattr(import_module(f"spark_ckpt.{module}"), name)
    except ImportError:  # another PySpark lacks modules that jobs need
        from spark_ckpt.spark_versions import require_spark_of_jobs

        require_spark_of_jobs(f"ckpt.{name}")
        raise
    globals()[name] = value  # Python asks this function for missing names only
    return value


def _missing(name: str) -> AttributeError:
    from spark_ckpt.errors import NameUnknown

    home = "spark_ckpt.connector" if name in _OF_CONNECTORS else _OF_PACKAGES.get(name)
    hint = f"write: from {home} import {name}" if home else ""
    return NameUnknown.of("spark_ckpt", name, [*__all__, *_OF_PACKAGES], hint)


def __dir__() -> list[str]:
    return __all__
