"""Rows that wait at the sources (lag), counted next to processing and only on request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession

from spark_ckpt.connector import CountsLag, Cursor
from spark_ckpt.plan.graph import SourceNode

_log = logging.getLogger(__name__)


class LagWatch(threading.Thread):
    """Counts the lag of each source that supports it, every `interval_s` seconds, and passes rows by source to
    `tell`.

    `cursors`: positions of the sources after the last batch; empty before the first. A source that does not answer is
    left out; when none does any more, `tell` gets an empty mapping once.
    """

    def __init__(
        self,
        spark: SparkSession,
        sources: Sequence[SourceNode],
        cursors: Callable[[], Mapping[str, Cursor]],
        tell: Callable[[Mapping[str, int]], None],
        interval_s: float,
    ) -> None:
        super().__init__(name="ckpt-lag", daemon=True)
        self._spark = spark
        self._counting = [(node.name, node.source) for node in sources if isinstance(node.source, CountsLag)]
        self._cursors = cursors
        self._tell = tell
        self._interval_s = interval_s
        self._over = threading.Event()

    @property
    def is_needed(self) -> bool:
        """True if a source can count its lag."""
        return bool(self._counting)

    def run(self) -> None:
        """Count until `close`."""
        told: Mapping[str, int] = {}
        while not self._over.wait(self._interval_s):
            found = self.asked()
            # Also when no source answers any more: the lag that was counted last would stay.
            if found or told:
                self._tell(found)
            told = found

    def asked(self) -> dict[str, int]:
        """Return the rows that wait now, by source."""
        cursors, found = self._cursors(), {}
        for name, source in self._counting:
            # Before the first batch a source has no position, and its whole input is no lag.
            if name in cursors:
                try:
                    found[name] = source.lag(cursors[name], source.end(self._spark))
                except Exception as error:  # noqa: BLE001 - a thread that died here would show an old lag from then on
                    _log.info("source %s does not say where it ends: %s", name, error)
        return found

    def close(self) -> None:
        """End after the count in progress."""
        self._over.set()
