"""Publishes the read position of sources that are configured so, after each epoch. The job never reads it back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from spark_ckpt.connector import Cursor, ShowsCursor
from spark_ckpt.errors import CkptError
from spark_ckpt.events.listener import EpochEvent, RunListener
from spark_ckpt.plan.graph import SourceNode

_log = logging.getLogger(__name__)
_CLOSE_S = 2.0


class ShownCursors(RunListener):
    """Listener that publishes the newest committed cursors; it skips older ones. A failed source does not affect the
    job.
    """

    def __init__(self, sources: Sequence[SourceNode]) -> None:
        self._showing = {
            node.name: node.source for node in sources if isinstance(node.source, ShowsCursor) and node.source.shown_as
        }
        self._newest: Mapping[str, Cursor] | None = None
        self._closing = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ckpt-show-cursors", daemon=True)

    @property
    def is_needed(self) -> bool:
        """True if a source publishes its position."""
        return bool(self._showing)

    def onEpochCommitted(self, event: EpochEvent) -> None:
        """Queue the cursors of the epoch."""
        if event.manifest is not None:
            with self._news:
                self._newest = event.manifest.cursors
                self._news.notify()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End after the newest cursors are published, or after a short wait."""
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while (cursors := self._next()) is not None:
            for name, source in self._showing.items():
                if name in cursors:
                    self._show(name, source, cursors[name])

    def _next(self) -> Mapping[str, Cursor] | None:
        with self._news:
            self._news.wait_for(lambda: self._newest is not None or self._closing)
            # Taken even while closing: the last position is shown before the thread ends.
            newest, self._newest = self._newest, None
            return newest

    def _show(self, name: str, source: ShowsCursor, cursor: Cursor) -> None:
        try:
            source.show(cursor)
        except CkptError as error:
            _log.warning("source %s: its position is not shown: %s", name, error)
        except Exception:  # noqa: BLE001 - a connector's bug affects nothing else
            _log.exception("source %s: its position is not shown", name)
