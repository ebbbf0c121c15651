"""Early sends: rows go to a sink before their epoch commits, so that only the sink's commit waits for the log.

Rows are sent in the order in which their epochs commit. Only rows of the oldest uncommitted epoch are sent, because a
transaction holds one epoch. For the same reason a sink with an unpublished epoch gets none. The sink gets a copy of
the staged rows, and decides at its publish if it can use them. So exactly-once does not depend on early sends; a
failed one costs only time.

At most one early send runs at a sink at a time. So a publish waits only for rows that it needs itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import StagedAhead, StagedFile
from spark_ckpt.coordination.job_shape import SinkPlace
from spark_ckpt.coordination.messages import AheadEnded, DropAhead, SendAhead

Files = Mapping[str, Sequence[StagedFile]]
"""Files of one epoch by sink, in publishing order."""


@dataclass(slots=True)
class _Asked:
    """The early sends requested of one sink: number of files, and their epoch.

    `rests`: the last early send failed, and the sink has not published since.
    """

    epoch: int = 0
    files: int = 0
    under_way: bool = False
    rests: bool = False


class Sending:
    """Early sends of one incarnation."""

    def __init__(self, sinks: Mapping[str, SinkPlace], incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._places = {sink: place for sink, place in sinks.items() if place.is_sent_ahead}
        self._asked = {sink: _Asked() for sink in self._places}

    @property
    def possible(self) -> bool:
        """True if a sink accepts early sends."""
        return bool(self._asked)

    def due(self, epoch: int, files: Files, owing: Collection[str]) -> list[SendAhead]:
        """Return the early sends of `epoch`, the next one to commit, for its files staged so far.

        `owing`: sinks with an unpublished epoch.
        """
        return [self._send(sink, epoch, files[sink]) for sink in self._ready(epoch, files) if sink not in owing]

    def ended(self, event: AheadEnded) -> None:
        """Record the answer to an early send."""
        asked = self._asked[event.sink]
        asked.under_way, asked.rests = False, event.error is not None

    def published(self, sink: str) -> None:
        """Allow early sends to the sink again."""
        if sink in self._asked:
            self._asked[sink].rests = False

    def aborted(self, epoch: int) -> list[DropAhead]:
        """Return rollbacks for the sinks that have rows of an aborted epoch: these rows return under another number."""
        given_up = [sink for sink, asked in self._asked.items() if asked.epoch == epoch]
        for sink in given_up:
            self._asked[sink].epoch = self._asked[sink].files = 0
        return [DropAhead(sink) for sink in given_up]

    def _ready(self, epoch: int, files: Files) -> list[str]:
        return [sink for sink, asked in self._asked.items() if _has_more(asked, epoch, files.get(sink, ()))]

    def _send(self, sink: str, epoch: int, files: Sequence[StagedFile]) -> SendAhead:
        asked, place = self._asked[sink], self._places[sink]
        asked.epoch, asked.files, asked.under_way = epoch, len(files), True
        staged = StagedAhead(Epoch(epoch), self._incarnation, place.root, place.storage_options, tuple(files))
        return SendAhead(sink, staged)


def _has_more(asked: _Asked, epoch: int, files: Sequence[StagedFile]) -> bool:
    # After a failure the sink gets early sends again only once a publish has shown that it works.
    if asked.under_way or asked.rests:
        return False
    return len(files) > (asked.files if asked.epoch == epoch else 0)
