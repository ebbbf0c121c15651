"""When acknowledgements go into the log by themselves. Pure: no I/O.

An acknowledgement travels with the manifest of the next epoch, so that an epoch costs one commit. Two must not wait for it:

1. A sink's first one. While the log knows of none, a missing marker means that nothing was ever published, and every epoch is
   published. If the marker expired meanwhile, its rows would come twice.
2. One that no epoch carries for `ack_wait_ms` on an idle stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from checkpoint_protocols.machine import Effect, Event
from spark_ckpt.coordination.job_shape import JobShape
from spark_ckpt.coordination.messages import ArmTimer, RecordAcks
from spark_ckpt.store.records import SinkAck


@dataclass(frozen=True, slots=True)
class AcksDue(Event):
    """Acknowledgements have waited for an epoch that carries them; a timer's `elapsed`."""


IsFirst = Callable[[str], bool]
"""Whether the log knows of no epoch that this very sink has."""


class AckRecords:
    """One incarnation's. At most one timer is armed at a time."""

    def __init__(self, shape: JobShape, is_first: IsFirst) -> None:
        self._wait_ms = shape.ack_wait_ms
        self._is_first = is_first
        self._waiting: Sequence[SinkAck] | None = None

    def acknowledged(self, acks: Sequence[SinkAck]) -> list[Effect]:
        """A sink has acknowledged an epoch. `acks`: all that no row of the log says yet."""
        if any(self._is_first(ack.sink) for ack in acks):
            return [RecordAcks(tuple(acks))]
        return self.refused(acks)

    def refused(self, acks: Sequence[SinkAck]) -> list[Effect]:
        """The log did not take them, or need not yet: look at them again after the wait."""
        if self._waiting is not None or not acks:
            return []
        self._waiting = tuple(acks)
        return [ArmTimer(self._wait_ms, AcksDue())]

    def due(self, acks: Sequence[SinkAck], idle: bool) -> list[Effect]:
        """The wait is over. `idle`: no epoch is open, and nothing has been read that the next one would have."""
        waited, self._waiting = self._waiting == tuple(acks), None
        if any(self._is_first(ack.sink) for ack in acks) or (acks and waited and idle):
            return [RecordAcks(tuple(acks))]
        return self.refused(acks)
