"""Which message is which, whatever the machines say: a bit per sending, and who sent it.

Bits are numbered per channel, so that orders of events that make no difference give the same bits.

In a deterministic protocol a process sends the same again after a failure: same channel, same `seq`, and then the
same body, or the protocol is wrong.  It counts as the same message.  On unreliable channels a machine repeats
what it sent, in the same incarnation.  Everywhere else a number that is used twice is a violation.
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
    """Bits of everything sent on the graph's channels."""

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
        """What replaced lives said (`Zombie`), and when. Sent by nobody, unless its sender does what it did."""
        self.sent_by: dict[ProcessId, int] = {}
        """Mask of every application message that a process ever sent, undone or not."""

    def of(self, message: Envelope) -> int | None:
        """The bit of an application message; None if nobody sent it."""
        return self.bits.get(self._name(message))

    def message(self, bit: int) -> Envelope:
        """What was sent first under the bit."""
        return self.messages[bit.bit_length() - 1]

    def register(self, message: Envelope, clock: tuple[int, ...]) -> int:
        """The bit of a message that is being sent."""
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
        """A replaced life's message has a bit, so that channels know it, and its name stays free for its successor."""
        if message.kind == APP:
            self.ghostly.append((message, tuple(clock)))
        return self._new(message)

    def believe(self, message: Envelope, incarnation: Incarnation) -> int | None:
        """The bit of a replaced life's message that somebody delivers in `incarnation`; None if nobody may.

        Where lives repeat each other its successor has to send the same, and no other.  Elsewhere only those may deliver it
        who have not heard of the recovery, and they have to undo it when they do.
        """
        clock = next((clock for said, clock in self.ghostly if said == message), None)
        unaware = message.incarnation == incarnation
        return self.register(message, clock) if clock and (self.deterministic or unaware) else None

    def labels(self, mask: int) -> tuple[Label, ...]:
        """The messages of a mask by what they are: bits depend on how many were sent before, undone ones too."""
        return tuple(sorted(self._label(number) for number in _numbers(mask)))

    def _label(self, number: int) -> Label:
        message = self.messages[number]
        ours = message.kind == APP
        life, index = (0, 0) if ours and self.deterministic else (message.incarnation, message.index)
        return (message.source, message.target, life, message.seq, index, message.kind)

    def describe(self, mask: int) -> list[str]:
        """The messages of a mask, for people."""
        return [describe(message) for number, message in self.messages.items() if mask >> number & 1]

    def _new(self, message: Envelope) -> int:
        ends = (message.source, message.target)
        number = self.next_number[ends]
        self.next_number[ends] = number + self.stride
        self.messages[number] = message
        return 1 << number

    def _name(self, message: Envelope) -> Name:
        life = 0 if self.deterministic else message.incarnation
        return (message.source, message.target, life, message.seq)

    def _judge_repetition(self, bit: int, message: Envelope) -> None:
        first = self.message(bit)
        ends = (message.source, message.target)
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
    """One line about a message."""
    what = message.body if message.kind == APP else message.kind
    return f"{message.source}->{message.target} #{message.incarnation}.{message.seq}@{message.index} {what}"
