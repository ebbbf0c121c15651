"""Random histories of processes that send, receive and take checkpoints, for the recovery line's tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from random import Random

from hypothesis import strategies as st

from checkpoint_protocols.checkpoints.recovery_line import Candidate, Ends, Message, Messages, in_transit, orphans
from checkpoint_protocols.graph import channel_between
from checkpoint_protocols.ids import ChannelId, ProcessId

Steps = Sequence[tuple[int, int]]
Line = dict[ProcessId, Candidate]

STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 11)), max_size=45)
"""(what, whom): 0 and 1 send, 2 to 4 receive, 5 takes a checkpoint."""


def random_steps(seed: int) -> Steps:
    """Random steps without hypothesis, for tests that search many histories for one."""
    draw = Random(seed)
    return [(draw.randint(0, 5), draw.randint(0, 11)) for _ in range(draw.randint(5, 45))]


class History:
    """`fifo`: channels are counted, else messages have ids. `clocks` are vector clocks per candidate."""

    def __init__(self, processes: int, fifo: bool, steps: Steps) -> None:
        self.processes = [ProcessId("pqrs"[number]) for number in range(processes)]
        self.ends: Ends = {channel_between(p, q): (p, q) for p, q in product(self.processes, repeat=2) if p != q}
        self.fifo = fifo
        self.channels = list(self.ends)
        self.queues: dict[ChannelId, list[tuple[int, int, tuple[int, ...]]]] = {
            channel: [] for channel in self.channels
        }
        self.sent: dict[ChannelId, list[int]] = {channel: [] for channel in self.channels}
        self.received: dict[ChannelId, list[int]] = {channel: [] for channel in self.channels}
        self.clock = {p: [0] * processes for p in self.processes}
        self.known: dict[ProcessId, list[Candidate]] = {p: [] for p in self.processes}
        self.seen: dict[ProcessId, dict[ProcessId, int]] = {p: {} for p in self.processes}
        self.marks: dict[ProcessId, dict[int, dict[ProcessId, int]]] = {p: {} for p in self.processes}
        """Newest interval received from, per sender: now, and at each checkpoint."""
        self.clocks: dict[tuple[ProcessId, int | None], tuple[int, ...]] = {}
        for process in self.processes:
            self._checkpoint(process)
        for what, whom in steps:
            self._step(what, whom)

    def candidates(self, failed: frozenset[ProcessId]) -> dict[ProcessId, list[Candidate]]:
        for p in self.processes:
            self.clocks[p, None] = tuple(self.clock[p])
        return {p: [*self.known[p], *(() if p in failed else (self._now(p, None),))] for p in self.processes}

    def _step(self, what: int, whom: int) -> None:
        channel = self.channels[whom % len(self.channels)]
        if what <= 1:
            self._send(channel)
        elif what <= 4 and self.queues[channel]:
            self._receive(channel, whom)
        else:
            self._checkpoint(self.processes[whom % len(self.processes)])

    def _send(self, channel: ChannelId) -> None:
        sender = self.ends[channel][0]
        self._tick(sender)
        self.sent[channel].append(len(self.sent[channel]) + 1)
        interval = len(self.known[sender]) - 1
        self.queues[channel].append((len(self.sent[channel]), interval, tuple(self.clock[sender])))

    def _receive(self, channel: ChannelId, whom: int) -> None:
        receiver = self.ends[channel][1]
        queue = self.queues[channel]
        message, interval, theirs = queue.pop(0 if self.fifo else whom % len(queue))
        sender = self.ends[channel][0]
        self.seen[receiver][sender] = max(interval, self.seen[receiver].get(sender, 0))
        self.received[channel].append(message)
        self.clock[receiver] = [max(pair) for pair in zip(self.clock[receiver], theirs, strict=True)]
        self._tick(receiver)

    def _checkpoint(self, process: ProcessId) -> None:
        index = len(self.known[process])
        self.known[process].append(self._now(process, index))
        self.marks[process][index] = dict(self.seen[process])
        self.clocks[process, index] = tuple(self.clock[process])

    def _tick(self, process: ProcessId) -> None:
        self.clock[process][self.processes.index(process)] += 1

    def _now(self, process: ProcessId, index: int | None) -> Candidate:
        mine = {channel: ends.index(process) for channel, ends in self.ends.items() if process in ends}
        sent = {channel: self._messages(self.sent[channel]) for channel, end in mine.items() if end == 0}
        received = {channel: self._messages(self.received[channel]) for channel, end in mine.items() if end == 1}
        return Candidate(index, sent, received)

    def _messages(self, messages: list[int]) -> Messages:
        return len(messages) if self.fifo else frozenset((1, number) for number in messages)


def usable(line: Line, ends: Ends, lost: Mapping[ChannelId, frozenset[Message]]) -> bool:
    """The line has no orphan and no lost message in transit: the definition."""
    return not any(
        set(orphans(line[p], line[q], channel))
        or set(in_transit(line[p], line[q], channel)) & lost.get(channel, frozenset())
        for channel, (p, q) in ends.items()
    )


def all_lines(candidates: Mapping[ProcessId, Sequence[Candidate]]) -> Iterator[Line]:
    for choice in product(*candidates.values()):
        yield dict(zip(candidates, choice, strict=True))


def greatest(lines: Sequence[Line], candidates: Mapping[ProcessId, Sequence[Candidate]]) -> Line:
    """The newest candidate of each process over all lines; it is one of them if a greatest one exists."""
    return {p: max((line[p] for line in lines), key=list(known).index) for p, known in candidates.items()}
