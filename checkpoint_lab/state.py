"""A process's application state and, beside it, the truth about its history: masks with a bit per message.

The machines know nothing of the masks.  Taking a `Cut` costs the same however long the history is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.vocabulary import Envelope


class Item(NamedTuple):
    """A message on its way. `bit` names what was sent (0 for control messages), `uid` this one sending of it."""

    uid: int
    message: Envelope
    bit: int


class Cut(NamedTuple):
    """A state as it was: application first, truth after it."""

    cursor: int
    have: int
    digest: int
    rows: tuple[list[int], int]
    outbox: tuple[tuple[ChannelId, str], ...]
    sent: int
    received: int
    taken: int
    pending: Mapping[int, tuple[ChannelId, Item]]
    lived: int
    clock: tuple[int, ...]


NOTHING: Mapping[int, tuple[ChannelId, Item]] = {}


class State:
    """The state of now."""

    __slots__ = (
        "clock",
        "cursor",
        "digest",
        "have",
        "lived",
        "outbox",
        "pending",
        "received",
        "rows",
        "sent",
        "taken",
    )

    def __init__(self, processes: int) -> None:
        self.cursor = 0
        """Inputs read: a source's own."""
        self.have = 0
        """Lineages taken in."""
        self.digest = 0
        self.rows: list[int] = []
        """Bits of everything delivered, in order. Only ever appended to: cuts share the list."""
        self.outbox: deque[tuple[ChannelId, str]] = deque()
        """What the application wants to send and has not handed to the machine."""
        self.sent = 0
        self.received = 0
        self.taken = 0
        """Everything the machine was given, of the protocol's messages too."""
        self.pending: dict[int, tuple[ChannelId, Item]] = {}
        """Given to the machine, and neither delivered nor dropped by it."""
        self.lived = 0
        """Own events of this history."""
        self.clock = [0] * processes
        """Full vector clock: newest event of everybody that this state depends on."""

    def cut(self) -> Cut:
        """The state as it is now."""
        return Cut(
            self.cursor,
            self.have,
            self.digest,
            (self.rows, len(self.rows)),
            tuple(self.outbox),
            self.sent,
            self.received,
            self.taken,
            dict(self.pending) if self.pending else NOTHING,
            self.lived,
            tuple(self.clock),
        )

    def settle(self, message: Envelope) -> None:
        """The machine is through with what it was given."""
        for bit, (_, item) in self.pending.items():
            if item.message is message or item.message == message:
                del self.pending[bit]
                return

    @classmethod
    def of(cls, cut: Cut) -> State:
        """A state that continues from a cut."""
        state = cls(0)
        state.cursor, state.have, state.digest = cut.cursor, cut.have, cut.digest
        state.rows = cut.rows[0][: cut.rows[1]]
        state.outbox = deque(cut.outbox)
        state.sent, state.received, state.taken = cut.sent, cut.received, cut.taken
        state.pending = dict(cut.pending)
        state.lived, state.clock = cut.lived, list(cut.clock)
        return state

    def depend_on(self, clock: tuple[int, ...]) -> None:
        """Take in a message's vector clock."""
        self.clock = [mine if mine > theirs else theirs for mine, theirs in zip(self.clock, clock, strict=True)]


def initial_cut(processes: int) -> Cut:
    """The state before anything happened."""
    return State(processes).cut()
