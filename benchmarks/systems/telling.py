"""A system's program records its batches and epochs, one JSON text a line, for the measurement of parts.

For spark_ckpt a listener records them. Plain Spark's progress is polled: a listener in Python would cost each batch 120 ms.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    import spark_ckpt as ckpt

ASKED_EVERY_S = 2.0


def line_writer(path: str) -> Callable[[Mapping[str, object]], None]:
    """Return a function that appends its argument, with the current time, as a line."""

    def write(record: Mapping[str, object]) -> None:
        with open(path, "a") as file:  # noqa: PTH123 - the standard library alone, on every Python
            file.write(json.dumps({"at": time.time(), **record}) + "\n")

    return write


def listener(path: str) -> ckpt.RunListener:
    """Listener of a job."""
    import spark_ckpt as ckpt

    write = line_writer(path)

    class Records(ckpt.RunListener):
        def onPhases(self, event: ckpt.ProgressEvent) -> None:
            write({"what": "batch", "progress": dict(event.progress)})

        def onEpochCommitted(self, event: ckpt.EpochEvent) -> None:
            manifest, parts_ms = event.manifest, event.detail["parts_ms"]
            assert manifest is not None and isinstance(parts_ms, Mapping)
            decided = {"began_ms": manifest.created_ms, "decision_ms": parts_ms["decision"], "ends": manifest.cursors}
            write({"what": "decided", "epoch": event.epoch, **decided})

        def onEpochPublished(self, event: ckpt.EpochEvent) -> None:
            known = {name: event.detail[name] for name in ("duration_ms", "parts_ms") if name in event.detail}
            write({"what": "published", "epoch": event.epoch, **known})

    return Records()


def write_progress(query: StreamingQuery, path: str) -> None:
    """Record progress until the query ends. Spark keeps a hundred records; older ones would be lost."""
    write, written = line_writer(path), -1
    while not query.awaitTermination(ASKED_EVERY_S):
        for progress in query.recentProgress:
            if progress["batchId"] > written and "addBatch" in progress["durationMs"]:
                write({"what": "batch", "progress": json.loads(progress.json)})
                written = progress["batchId"]
