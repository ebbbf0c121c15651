"""Control source: barriers enter the stream as rows of a JVM memory stream, next to the job's sources.

Each marker is one `addData`, so Spark's offset of the source counts markers (rules in `coordination/markers.py`). The
rows travel in the plan: executors read nothing and start no Python process. A Python data source would need four
processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from spark_ckpt.coordination.markers import NO_MARKER, ControlMarker
from spark_ckpt.spark_internals.memory_stream import MemoryStream, rows_up_to


class Control:
    """Markers of one incarnation; thread-safe. They enter the stream as soon as it exists."""

    def __init__(self) -> None:
        self.newest = NO_MARKER
        """Newest marker."""
        self._waiting: list[ControlMarker] = []
        self._offer: Callable[[ControlMarker], None] | None = None
        self._lock = threading.Lock()

    def inject(self, marker: ControlMarker) -> None:
        """Offer the next marker to the stream."""
        # Step 2 of docs/design/epoch-in-nine-steps.md.
        # Spark counts rows, and the rules count markers: both have to see the same order.
        with self._lock:
            self.newest = marker
            # Kept only without a stream: a job that ends an epoch with each batch has millions of markers.
            if self._offer is None:
                self._waiting.append(marker)
            else:
                self._offer(marker)

    def attach(self, offer: Callable[[ControlMarker], None]) -> None:
        """Connect the stream: it gets all markers so far, and every later one."""
        with self._lock:
            while self._waiting:
                offer(self._waiting.pop(0))
            self._offer = offer


def marker_number(line: str | None) -> int:
    """Return the number of markers in the stream, from the control source's line in Spark's offset log."""
    return rows_up_to(line)


def control_rows(spark: SparkSession, control: Control) -> DataFrame:
    """Return the markers as a stream of (kind int, epoch long, full_groups string)."""
    stream = MemoryStream(spark)
    control.attach(lambda marker: stream.add(f"{marker.kind} {marker.epoch} {marker.full}"))
    # No part has a blank: names have none, and `full_snapshots.asking` writes JSON without any.
    words = "split(value, ' ')"
    return stream.frame.selectExpr(
        f"CAST({words}[0] AS INT) AS kind", f"CAST({words}[1] AS LONG) AS epoch", f"{words}[2] AS full_groups"
    )
