"""Channels: those of the graph (ordered or not, logs or not), and the control channels (reliable, unordered).

A channel outlives its ends. A message leaves it when the machine gets it. Messages that an incarnation received and
neither delivered nor dropped return to the channel when it ends (`give_back`). A log channel keeps every message and is
read from the position of the reader's state.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint_lab.state import Item
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import ChannelId, ProcessId
from checkpoint_protocols.recovery import Needs

Link = frozenset[str]
"""Two processes, for partitions."""


class Network:
    """All queues. The first message on a control channel creates its queue."""

    def __init__(self, graph: Graph, needs: Needs) -> None:
        self.graph = graph
        self.fifo = needs.fifo
        self.reliable = needs.reliable
        self.log: dict[ChannelId, list[Item]] | None = {c: [] for c in graph.channels} if needs.replayable else None
        self.queues: dict[ChannelId, list[Item]] = {channel: [] for channel in graph.channels}
        self.controls: dict[ChannelId, list[Item]] = {}
        self.targets: dict[ChannelId, ProcessId] = {channel: ends[1] for channel, ends in graph.ends.items()}
        self.links: dict[ChannelId, Link] = {channel: Link(ends) for channel, ends in graph.ends.items()}
        self.cut: set[Link] = set()

    def put(self, channel: ChannelId, item: Item) -> None:
        """Append a message to its channel."""
        queue = self.queues.get(channel)
        if queue is None:
            self._control(channel, item).append(item)
            return
        queue.append(item)
        if self.log is not None:
            self.log[channel].append(item)

    def take(self, channel: ChannelId, position: int) -> Item:
        """Remove and return the message at a position."""
        queue = self.queues.get(channel)
        return (self.controls[channel] if queue is None else queue).pop(position)

    def peek(self, channel: ChannelId, position: int) -> Item:
        """Return the message at a position."""
        queue = self.queues.get(channel)
        return (self.controls[channel] if queue is None else queue)[position]

    def repeat(self, channel: ChannelId, position: int) -> None:
        """Duplicate the message at a position."""
        queue = self.queues.get(channel)
        if queue is None:
            queue = self.controls[channel]
        queue.insert(position, queue[position])

    def give_back(self, pending: Mapping[int, tuple[ChannelId, Item]], taken: int) -> None:
        """Return unfinished messages of an ended incarnation to the heads of their channels.

        Messages in its new state (`taken`) are left out.
        """
        # in reverse order, so that the oldest message is at the head again
        for bit, (channel, item) in reversed(list(pending.items())):
            if not bit & taken and channel in self.queues:
                self.queues[channel].insert(0, item)

    def read_again(self, process: ProcessId, taken: int) -> None:
        """Reset the log channels into `process` to the position of its state."""
        if self.log is None:
            return
        for channel in self.graph.inputs.get(process, ()):
            # the log keeps all messages; the state knows which of them it has taken
            self.queues[channel] = [item for item in self.log[channel] if not item.bit & taken]

    def under_way(self) -> int:
        """Return the mask of the messages on the graph's channels."""
        mask = 0
        for queue in self.queues.values():
            for item in queue:
                mask |= item.bit
        return mask

    def _control(self, channel: ChannelId, item: Item) -> list[Item]:
        queue = self.controls.get(channel)
        if queue is None:
            queue = self.controls[channel] = []
            message = item.message
            self.targets[channel] = ProcessId(channel.partition("=>")[2])
            self.links[channel] = Link((message.source, message.target))
        return queue
