"""Record acknowledgements in the log when no epoch can carry them. Pure: no I/O.

An acknowledgement travels with the manifest of the next epoch, so that an epoch costs one append to the log. Two
kinds do not wait for the next epoch:

1. The first acknowledgement of a sink. Until the log holds one, a restart reads a missing marker as "nothing was
   published" and publishes every epoch. If the marker expired meanwhile, the sink would get those rows twice.
2. An acknowledgement that no epoch carried for `ack_wait_ms` on an idle stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from checkpoint_protocols.machine import Effect, Event
from spark_ckpt.coordination.job_shape import JobShape
from spark_ckpt.coordination.messages import ArmTimer, RecordAcks
from spark_ckpt.epochs.records import SinkAck


@dataclass(frozen=True, slots=True)
class AcksDue(Event):
    """The wait for an epoch that carries the acknowledgements is over; the `elapsed` event of a timer."""


IsFirst = Callable[[str], bool]
"""Predicate over a sink's name: true while the log records no epoch that this sink has published."""


class AckRecords:
    """Acknowledgements of one incarnation that the log lacks. It arms at most one timer at a time."""

    def __init__(self, shape: JobShape, is_first: IsFirst) -> None:
        self._wait_ms = shape.ack_wait_ms
        self._is_first = is_first
        self._waiting: Sequence[SinkAck] | None = None

    def acknowledged(self, acks: Sequence[SinkAck]) -> list[Effect]:
        """Return the effects after a sink has acknowledged an epoch.

        `acks`: every acknowledgement that no log row records yet.
        """
        if any(self._is_first(ack.sink) for ack in acks):
            return [RecordAcks(tuple(acks))]
        return self.refused(acks)

    def refused(self, acks: Sequence[SinkAck]) -> list[Effect]:
        """Arm the timer that examines `acks` again after the wait, unless it is armed or there are none.

        The coordinator calls it when the log refused the acknowledgements, and when they can wait for the next epoch.
        """
        if self._waiting is not None or not acks:
            return []
        self._waiting = tuple(acks)
        return [ArmTimer(self._wait_ms, AcksDue())]

    def due(self, acks: Sequence[SinkAck], idle: bool) -> list[Effect]:
        """Return the effects after the wait is over.

        `acks`: every acknowledgement that no log row records yet. `idle`: no epoch is open, and no row has been read
        that the next epoch would contain.
        """
        # A change during the wait means that epochs are still committed: the next one carries these acknowledgements.
        waited, self._waiting = self._waiting == tuple(acks), None
        if any(self._is_first(ack.sink) for ack in acks) or (acks and waited and idle):
            return [RecordAcks(tuple(acks))]
        return self.refused(acks)
