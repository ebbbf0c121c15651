"""A system's program writes down what its library tells of each batch and epoch, a JSON text a line, for the measurement of parts.

Ours is heard by a listener. Plain Spark's progress is asked for now and then: a listener in Python would cost each batch 120 ms.
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


def teller(path: str) -> Callable[[Mapping[str, object]], None]:
    """What it is called with is a line, with the moment."""

    def tell(what: Mapping[str, object]) -> None:
        with open(path, "a") as file:  # noqa: PTH123 - the standard library alone, on every Python
            file.write(json.dumps({"at": time.time(), **what}) + "\n")

    return tell


def listener(path: str) -> ckpt.RunListener:
    """Of a job."""
    import spark_ckpt as ckpt

    tell = teller(path)

    class Telling(ckpt.RunListener):
        def onPhases(self, event: ckpt.ProgressEvent) -> None:
            tell({"what": "batch", "progress": dict(event.progress)})

        def onEpochCommitted(self, event: ckpt.EpochEvent) -> None:
            manifest, parts_ms = event.manifest, event.detail["parts_ms"]
            assert manifest is not None and isinstance(parts_ms, Mapping)
            decided = {"began_ms": manifest.created_ms, "decision_ms": parts_ms["decision"], "ends": manifest.cursors}
            tell({"what": "decided", "epoch": event.epoch, **decided})

        def onEpochPublished(self, event: ckpt.EpochEvent) -> None:
            known = {name: event.detail[name] for name in ("duration_ms", "parts_ms") if name in event.detail}
            tell({"what": "published", "epoch": event.epoch, **known})

    return Telling()


def tell_progress(query: StreamingQuery, path: str) -> None:
    """Until the query ends. Records that Spark has forgotten meanwhile would be lost: it keeps a hundred."""
    tell, told = teller(path), -1
    while not query.awaitTermination(ASKED_EVERY_S):
        for progress in query.recentProgress:
            if progress["batchId"] > told and "addBatch" in progress["durationMs"]:
                tell({"what": "batch", "progress": json.loads(progress.json)})
                told = progress["batchId"]
