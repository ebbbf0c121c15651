"""Decides when everything that the sources had at a moment is read, committed and published, for `Run.processAllAvailable`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from spark_ckpt.connector import Cursor
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.events.listener import EpochEvent, IncarnationEvent, RunListener

EPOCHS = 2
"""Epochs after the last row. The barrier of the first may be in that row's own batch, so the batch in which the watermark
closes windows, and keys time out, is only in the second.
"""


class Arrivals(RunListener):
    """Newest epoch of a run, and the newest one that each sink has, as events report them. Any thread reads it."""

    def __init__(self, sinks: Iterable[str]) -> None:
        self.newest = 0
        self.manifest: Manifest | None = None
        self._published = dict.fromkeys(sinks, 0)

    def onIncarnationStarted(self, event: IncarnationEvent) -> None:
        """Continue from the base."""
        self.newest, self.manifest = event.base, None

    def onEpochCommitted(self, event: EpochEvent) -> None:
        """Note the epoch."""
        self.newest, self.manifest = event.epoch, event.manifest

    def onEpochPublished(self, event: EpochEvent) -> None:
        """Note that the sink has the epoch."""
        self._published[str(event.detail.get("sink", ""))] = event.epoch

    def published(self, epoch: int) -> bool:
        """Return True if every sink has this epoch."""
        return all(newest >= epoch for newest in self._published.values())


class Step(Enum):
    """Next step of who waits."""

    WAIT = "nothing has changed"
    ASK = "request an epoch"
    DONE = "every sink has all rows"


class AllAvailable:
    """Waits for the rows up to `ends`. `reached`: returns True if cursors have reached ends."""

    def __init__(
        self,
        ends: Mapping[str, Cursor],
        reached: Callable[[Mapping[str, Cursor], Mapping[str, Cursor]], bool],
        arrivals: Arrivals,
    ) -> None:
        self._ends = ends
        self._reached = reached
        self._arrivals = arrivals
        self._incarnation = self._first = self._asked = 0
        self._goal: int | None = None

    def next_step(self, incarnation: int, cursors: Mapping[str, Cursor]) -> Step:
        """Return what to do next. `cursors`: positions of the sources after the newest micro-batch of `incarnation`."""
        # Kept once found: a committed epoch covers the rows for good.
        if self._goal is None and self._covers(self._arrivals.manifest):
            self._goal = self._arrivals.newest
        if self._goal is not None:
            return Step.DONE if self._arrivals.published(self._goal) else Step.WAIT
        if not self._reached(cursors, self._ends):
            return Step.WAIT
        newest = self._arrivals.newest
        if incarnation != self._incarnation:  # a later incarnation may end its first epoch with the last row's batch
            self._incarnation, self._first = incarnation, newest
        # Requested already, and not committed yet.
        elif newest == self._asked:
            return Step.WAIT
        self._asked = newest
        return Step.ASK

    def _covers(self, manifest: Manifest | None) -> bool:
        """Return True if the epoch has all rows, and the batch after them, with none in flight."""
        return (
            manifest is not None
            and manifest.incarnation == self._incarnation
            and manifest.epoch >= self._first + EPOCHS
            and self._reached(manifest.cursors, self._ends)
            and not any(edge.files for edge in manifest.edges.values())
        )
