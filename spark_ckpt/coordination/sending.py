"""When a sink is sent rows of an epoch that is not decided: ahead, so that only the commit waits for the decision.

Rows go ahead in the order in which their epochs will be decided: those of the oldest epoch that is not, and only while the
sink owes nothing, because a transaction holds one epoch. What is sent is a copy of what is staged. Whether a sink can use it
is the sink's to say when it publishes; so nothing here is needed for an exact result, and a failure costs nothing but time.

One call is under way at a sink at a time: a publish that comes in between never waits for more than what it needs itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import StagedAhead, StagedFile
from spark_ckpt.coordination.job_shape import SinkPlace
from spark_ckpt.coordination.messages import AheadEnded, DropAhead, SendAhead

Files = Mapping[str, Sequence[StagedFile]]
"""Of one epoch, by sink, in publishing order."""


@dataclass(slots=True)
class _Asked:
    """What one sink was asked to send: so many files of an epoch. `rests`: it failed, and was not published to since."""

    epoch: int = 0
    files: int = 0
    under_way: bool = False
    rests: bool = False


class Sending:
    """One incarnation's books of the sinks that may be sent rows ahead."""

    def __init__(self, sinks: Mapping[str, SinkPlace], incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._places = {sink: place for sink, place in sinks.items() if place.is_sent_ahead}
        self._asked = {sink: _Asked() for sink in self._places}

    @property
    def possible(self) -> bool:
        """Whether there is any."""
        return bool(self._asked)

    def due(self, epoch: int, files: Files, owing: Collection[str]) -> list[SendAhead]:
        """What to send of `epoch`, the next one to be decided, as far as it is staged. `owing`: sinks with an epoch to publish."""
        return [self._send(sink, epoch, files[sink]) for sink in self._ready(epoch, files) if sink not in owing]

    def ended(self, event: AheadEnded) -> None:
        """The sink was sent what it was asked for, or could not be."""
        asked = self._asked[event.sink]
        asked.under_way, asked.rests = False, event.error is not None

    def published(self, sink: str) -> None:
        """It takes rows again."""
        if sink in self._asked:
            self._asked[sink].rests = False

    def aborted(self, epoch: int) -> list[DropAhead]:
        """Its rows will come under another number."""
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
    if asked.under_way or asked.rests:
        return False
    return len(files) > (asked.files if asked.epoch == epoch else 0)
