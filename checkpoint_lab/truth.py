"""Identity of messages, independent of the machines: a bit per sending, and its sender.

Bits are numbered per channel, so that equivalent orders of events give the same bits.

In a deterministic protocol a process sends the same message again after a failure: same channel, same `seq`, same body;
any other body is a violation. It counts as the same message. On unreliable channels a machine repeats what it sent, in
the same incarnation. Everywhere else a number that is used twice is a violation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checkpoint_lab.violations import ReusedId, WrongEffect
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import Incarnation, ProcessId
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Needs
from checkpoint_protocols.vocabulary import Envelope

Name = tuple[str, str, int, int]
"""Source, target, incarnation (0 where sends are regenerated), number."""


Label = tuple[str, str, int, int, int, str]
"""Source, target, incarnation, number, index, kind."""


class Truth:
    """Bits of every message sent on the graph's channels."""

    def __init__(self, needs: Needs, graph: Graph) -> None:
        self.deterministic = needs.deterministic
        self.reliable = needs.reliable
        self.bits: dict[Name, int] = {}
        self.messages: dict[int, Envelope] = {}
        """The first message of each bit number."""
        self.stride = len(graph.channels)
        self.next_number = {ends: number for number, ends in enumerate(graph.ends.values())}
        self.clocks: dict[int, tuple[int, ...]] = {}
        self.ghostly: list[tuple[Envelope, tuple[int, ...]]] = []
        """Messages of zombies (`Zombie`) with their clocks. They count as sent only if the successor sends the same."""
        self.sent_by: dict[ProcessId, int] = {}
        """Mask of every application message that a process ever sent, undone or not."""

    def of(self, message: Envelope) -> int | None:
        """Return the bit of an application message; None if no process sent it."""
        return self.bits.get(self._name(message))

    def message(self, bit: int) -> Envelope:
        """Return the first message sent under the bit."""
        return self.messages[bit.bit_length() - 1]

    def register(self, message: Envelope, clock: tuple[int, ...]) -> int:
        """Return the bit of a message that is being sent."""
        if message.kind != APP:
            return self._new(message)
        name = self._name(message)
        bit = self.bits.get(name)
        if bit is not None:
            self._judge_repetition(bit, message)
            return bit
        bit = self.bits[name] = self._new(message)
        self.clocks[bit] = clock
        self.sent_by[message.source] = self.sent_by.get(message.source, 0) | bit
        return bit

    def hear_ghost(self, message: Envelope, clock: Sequence[int]) -> int:
        """Return a bit for a zombie's message, so that channels know it; its name stays free for the successor."""
        if message.kind == APP:
            self.ghostly.append((message, tuple(clock)))
        return self._new(message)

    def believe(self, message: Envelope, incarnation: Incarnation) -> int | None:
        """Return the bit of a zombie's message that a process delivers in `incarnation`; None if no process may.

        In a deterministic protocol the successor has to send the same message, and no other. Elsewhere only a process
        that has not heard of the recovery may deliver it, and it has to undo the delivery when it hears.
        """
        clock = next((clock for said, clock in self.ghostly if said == message), None)
        unaware = message.incarnation == incarnation
        return self.register(message, clock) if clock and (self.deterministic or unaware) else None

    def labels(self, mask: int) -> tuple[Label, ...]:
        """Return the messages of a mask by their identity.

        Bits would not do: they depend on the number of earlier sends, undone ones included.
        """
        return tuple(sorted(self._label(number) for number in _numbers(mask)))

    def _label(self, number: int) -> Label:
        message = self.messages[number]
        ours = message.kind == APP
        life, index = (0, 0) if ours and self.deterministic else (message.incarnation, message.index)
        return (message.source, message.target, life, message.seq, index, message.kind)

    def describe(self, mask: int) -> list[str]:
        """Return the messages of a mask, for display."""
        return [describe(message) for number, message in self.messages.items() if mask >> number & 1]

    def _new(self, message: Envelope) -> int:
        ends = (message.source, message.target)
        number = self.next_number[ends]
        # each channel has its own residue class of numbers
        self.next_number[ends] = number + self.stride
        self.messages[number] = message
        return 1 << number

    def _name(self, message: Envelope) -> Name:
        life = 0 if self.deterministic else message.incarnation
        return (message.source, message.target, life, message.seq)

    def _judge_repetition(self, bit: int, message: Envelope) -> None:
        first = self.message(bit)
        ends = (message.source, message.target)
        # a protocol on reliable channels that does not regenerate sends never repeats a number
        if self.reliable and not self.deterministic:
            raise ReusedId(f"{describe(message)} has the number of {describe(first)}", ends, [describe(first)])
        if first.body != message.body:
            what = f"{describe(message)} was {describe(first)} before: the replay is another run"
            raise WrongEffect(what, ends, [describe(first), describe(message)])


def _numbers(mask: int) -> Iterator[int]:
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def describe(message: Envelope) -> str:
    """Return one line about a message."""
    what = message.body if message.kind == APP else message.kind
    return f"{message.source}->{message.target} #{message.incarnation}.{message.seq}@{message.index} {what}"
