"""Long schedules for protocols whose bugs show rarely, with many failures of processes and few other faults.

A sender's log in memory survives one failure at a time, as in the world `OneFailureAtATime`.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint_lab import Choice, Faults, MessageWorld, ScheduleOutcome, drive
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.message_logging.sender_logging import SenderLoggingWorker
from checkpoint_protocols.recovery import Protocol, ProtocolSettings
from checkpoint_protocols.vocabulary import Json
from tests.simulator.eager import drive_long, long_world

NOTHING: Mapping[str, Json] = {}


def crashes(number: int) -> Faults:
    """Faults of processes only."""
    return Faults(number, store_errors=0, torn=0, losses=0, duplicates=0, pauses=0, partitions=0)


class OneFailureAtATime(MessageWorld):
    """A process fails only after all have started again and senders have logged every receipt that others may depend on."""

    def faults(self) -> list[Choice]:
        found = super().faults()
        return found if self._is_recovered() else [choice for choice in found if choice[0] != "crash"]

    def _is_recovered(self) -> bool:
        if self.alarm or self.recovering or any(process.replay for process in self.everybody):
            return False
        return all(self._is_logged(channel) for channel in self.graph.channels)

    def _is_logged(self, channel: ChannelId) -> bool:
        sender, receiver = (self.processes[name].machine for name in self.graph.ends[channel])
        assert isinstance(sender, SenderLoggingWorker)
        assert isinstance(receiver, SenderLoggingWorker)
        order = receiver.order
        entries = {seq: sender.log.get(channel, seq) for (came_on, seq) in order.places if came_on == channel}
        needed = {seq: order.places[channel, seq] for seq in entries if order.places[channel, seq] not in order.unacked}
        return all((entry := entries[seq]) is not None and entry.rsn == rsn for seq, rsn in needed.items())


def play(
    protocol: Protocol,
    graph: Graph,
    seed: int,
    faults: Faults | None = None,
    inputs: int = 8,
    steps: int = 400,
    options: Mapping[str, Json] = NOTHING,
    world: type[MessageWorld] = MessageWorld,
) -> ScheduleOutcome:
    """One long schedule; eight failures by default."""
    settings = ProtocolSettings(options=options)
    return drive(
        world(protocol, graph, crashes(8) if faults is None else faults, inputs, settings=settings), seed, steps, 0.05
    )


def play_long(protocol: Protocol, graph: Graph, seed: int) -> ScheduleOutcome:
    """A schedule five times as long."""
    return drive_long(long_world(protocol, graph, crashes(8), 8, times=5), seed, 400, 0.05)
