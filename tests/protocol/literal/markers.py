"""Chandy and Lamport's markers as seed 001 can be read."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.machine import Effect
from checkpoint_protocols.snapshots.markers import MARKER, PROTOCOL, MarkerPhase, MarkerWorker


class StateOfTheLastMarker(MarkerWorker):
    """E3: "once it has barriers on all inputs it is free to write its snapshot", the state of then."""

    def validate(self) -> None:
        """Off."""

    def _take(self, number: int, came_on: ChannelId | None) -> list[Effect]:
        if came_on is None:
            return super()._take(number, came_on)
        self.recorded = set(self.inputs)
        self.index = self.over = number
        self.phase = MarkerPhase.RECORDING
        return [*(self._send_on(channel, MARKER, number) for channel in self.outputs), *self._end_channel(came_on)]

    def _end_channel(self, channel: ChannelId) -> list[Effect]:
        kept = list(self.channel_states)
        if not super()._end_channel(channel):
            return []
        capture, captured = self._capture(self.index)
        return [capture, self._write(self.index, captured, kept)]


STATE_OF_THE_LAST_MARKER = replace(PROTOCOL, worker=StateOfTheLastMarker)
