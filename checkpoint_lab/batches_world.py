"""The message world at the level of micro-batches: a process takes several messages in one step, and sends at its end.

A batch is one step of a process. Nothing else reaches its machine in between: neither control messages nor timers, answers
or recoveries. A survivor of a failure has ended its batch, and a process that is down has none. Both are as on Spark.

`batch, p, n`: `p` takes up to four messages of its channels, inputs, or messages of its replay; `n` draws how many, and
from which channels. Every other choice is that of the message world, `deliver` and `read` are batches of one.

A machine may log where its batches end (`vocabulary.MORE`). The host then ends a batch of the replay there again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from checkpoint_lab.job_recovery import channel_of
from checkpoint_lab.message_world import MessageWorld
from checkpoint_lab.process import Process
from checkpoint_lab.world import Choice
from checkpoint_protocols.ids import ChannelId, ProcessId
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.vocabulary import MORE, Envelope, Received

MOST, SHAPES = 4, 6
NOBODY = ProcessId("")


@dataclass(frozen=True, slots=True)
class Taken:
    """A message of a batch: at a position of a channel, the next one of the replay, or an input (no channel)."""

    channel: ChannelId | None = None
    position: int | None = None


class BatchesWorld(MessageWorld):
    """One job under one protocol, in batches."""

    LAGGARDS = (*MessageWorld.LAGGARDS, "batch")

    open: ProcessId = NOBODY
    """The process whose batch is under way; no sends of it are handed to the machine."""

    def choices(self) -> list[Choice]:
        """Return the choices of the message world, and batches."""
        found = super().choices()
        working = dict.fromkeys(self._worker_of(choice) for choice in found)
        return found + [("batch", name, shape) for name in working if name for shape in range(SHAPES)]

    def _worker_of(self, choice: Choice) -> ProcessId | None:
        """Return the process that a choice begins a batch of, None for every other step."""
        kind, name = choice[0], str(choice[1]) if len(choice) > 1 else ""
        if kind in ("read", "replay"):
            return ProcessId(name)
        channel = ChannelId(name)
        if kind == "deliver" and channel in self.network.queues:
            # a barrier or marker is no row: its delivery is a step of its own
            is_app = self.network.peek(channel, _number(choice[2])).message.kind == APP
            return self.network.targets[channel] if is_app else None
        return None

    def hand_out(self, process: Process) -> None:
        """Send what the application has to send, unless its batch is under way."""
        if process.name != self.open:
            super().hand_out(process)

    def _do_replay(self, name: ProcessId) -> None:
        # shape 0 draws a batch of one; a replay whose log names the end of its batch takes all of it
        self._do_batch(name, 0)

    def _do_batch(self, name: ProcessId, shape: int) -> None:
        process = self.processes[name]
        planned, incarnation = self._planned(process, shape), process.incarnation
        self.open = name
        for number, step in enumerate(planned):
            # a machine that holds the channel, or joins a recovery, ends the batch
            if process.incarnation != incarnation or not process.works or step.channel in process.held:
                break
            self._take(process, step, more=number + 1 < len(planned))
        # before the end, at which `hand_out` sends again
        self.open = NOBODY
        self.end_batch(process)
        self.note("batches" if len(planned) > 1 else "batches of one")

    def end_batch(self, process: Process) -> None:
        """Send what the batch produced."""
        if process.state.outbox:
            self.hand_out(process)

    def _take(self, process: Process, step: Taken, more: bool) -> None:
        if step.channel is None:
            self._do_read(process.name)
        elif step.position is None:
            message = process.replay.popleft()
            self.tell(process.name, "replay", str(message.body))
            self.hand(process, Received(step.channel, message, replayed=True, more=more))
        else:
            self.take_from(process, step.channel, step.position, more)

    def _planned(self, process: Process, shape: int) -> list[Taken]:
        """Return the batch's messages: of the replay as its log says, or drawn by `shape`."""
        # drawn from the choice and nothing else, so that a trace replays
        size, draw = 1 + shape % MOST, random.Random(shape)  # noqa: S311 - not for secrets
        if process.replay:
            logged = MORE in process.replay[0].header
            replayed = list(next_batch(process.replay)) if logged else list(process.replay)[:size]
            steps = [Taken(channel_of(message)) for message in replayed]
            # where no log says where batches ended, the last one of a replay may go on with new messages
            left = 0 if logged or len(steps) < len(process.replay) else size - len(steps)
            return steps + self._drawn(process, left, draw)
        if process.is_source:
            return [Taken()] * min(size, self.app.inputs - process.state.cursor)
        return self._drawn(process, size, draw)

    def _drawn(self, process: Process, size: int, draw: random.Random) -> list[Taken]:
        """Return up to `size` messages of the application from the channels that the process may read."""
        queues = {
            channel: [item.message.kind == APP for item in self.network.queues[channel]]
            for channel in self.graph.inputs[process.name]
            if channel not in process.held and self.network.links[channel] not in self.network.cut
        }
        steps: list[Taken] = []
        while len(steps) < size:
            # of a FIFO channel only the head, so that no batch passes a barrier
            depth = 1 if self.network.fifo else MOST
            offered = [
                (channel, position)
                for channel, queue in queues.items()
                for position, is_app in enumerate(queue[:depth])
                if is_app
            ]
            if not offered:
                break
            channel, position = draw.choice(offered)
            del queues[channel][position]
            steps.append(Taken(channel, position))
        return steps


def _number(value: object) -> int:
    assert isinstance(value, int)  # noqa: S101 - the choice's own number
    return value


def next_batch(replay: Iterable[Envelope]) -> Iterator[Envelope]:
    """Yield the messages of the replay's next batch."""
    for message in replay:
        yield message
        if not message.header[MORE]:
            return
