"""The control source: barriers enter the stream as rows of a Python data source beside the job's own sources.

The coordinator writes the newest marker into a small file on the driver's host; Spark's planner reads it through
`latestOffset` in a process of its own.  The marker is the source's offset, so Spark's offset log fixes, before a batch
runs and also when it is replayed, which batch holds which barrier.  An offset names one marker only: a batch can never
hold two barriers, however long it took to start (design.md, section 6).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "spark_ckpt_control"
OPEN, BARRIER = 1, 2
"""Kinds of control rows: OPEN lets every key group restore and arm its timers, BARRIER ends an epoch. Data rows are 0."""


@dataclass(frozen=True, slots=True)
class Marker:
    """One control row for every key group. `number` grows by one per marker of an incarnation; 0 is none yet."""

    number: int
    kind: int
    epoch: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From a line of Spark's offset log or from the control file."""
        fields = json.loads(text)
        return cls(int(fields["number"]), int(fields["kind"]), int(fields["epoch"]))

    def json(self) -> str:
        """JSON with a fixed key order: Spark compares offsets as texts."""
        return json.dumps(asdict(self))


NO_MARKER = Marker(0, 0, 0)


class ControlFile:
    """The driver's side: at most one newest marker, replaced atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = NO_MARKER
        self._write(NO_MARKER)

    def inject(self, kind: int, epoch: int) -> Marker:
        """Offer the next marker to the stream."""
        self._last = Marker(self._last.number + 1, kind, epoch)
        self._write(self._last)
        return self._last

    def _write(self, marker: Marker) -> None:
        fresh = self.path.with_suffix(".next")
        fresh.write_text(marker.json())
        fresh.replace(self.path)


class ControlReader(DataSourceStreamReader):
    """The planner's side, in a process beside the driver's JVM."""

    def __init__(self, path: str) -> None:
        self._path = path

    def initialOffset(self) -> dict[str, int]:
        """No marker yet."""
        return asdict(NO_MARKER)

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
        """The newest marker, if it is newer than `start`."""
        newest = Marker.parse(Path(self._path).read_text()) if os.path.exists(self._path) else NO_MARKER  # noqa: PTH110
        return asdict(newest) if newest.number > start["number"] else start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One row for one marker."""
        return [InputPartition((end["kind"], end["epoch"]))] if end["number"] > start["number"] else []

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        """(kind, epoch)."""
        yield partition.value

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to forget."""


class ControlSource(DataSource):
    """Registered on the session under `FORMAT`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """Kind of marker and epoch."""
        return "kind int, epoch long"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of the control file named by option `path`."""
        return ControlReader(self.options["path"])
