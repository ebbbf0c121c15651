"""A process's application state, and the truth about its history: masks with a bit per message.

The machines do not see the masks. Taking a `Cut` costs the same for every length of the history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.vocabulary import Envelope


class Item(NamedTuple):
    """A message on its way. `bit` names the sent message (0 for control messages), `uid` this one sending of it."""

    uid: int
    message: Envelope
    bit: int


class Cut(NamedTuple):
    """A snapshot of a state: the application first, then the truth."""

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
    """The current state of a process."""

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
        """Number of inputs read; sources only."""
        self.have = 0
        """Mask of the lineages taken in."""
        self.digest = 0
        self.rows: list[int] = []
        """Bits of all delivered messages, in order. Append-only, because cuts share the list."""
        self.outbox: deque[tuple[ChannelId, str]] = deque()
        """Records that the application wants to send and has not handed to the machine yet."""
        self.sent = 0
        self.received = 0
        self.taken = 0
        """Mask of every message given to the machine, the protocol's messages included."""
        self.pending: dict[int, tuple[ChannelId, Item]] = {}
        """Messages given to the machine that it has neither delivered nor dropped."""
        self.lived = 0
        """Mask of the process's own events in this history."""
        self.clock = [0] * processes
        """Full vector clock: the newest event of each process that this state depends on."""

    def cut(self) -> Cut:
        """Return a snapshot of the state."""
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
        """Remove a message from `pending`: the machine has delivered or dropped it."""
        for bit, (_, item) in self.pending.items():
            if item.message is message or item.message == message:
                del self.pending[bit]
                return

    @classmethod
    def of(cls, cut: Cut) -> State:
        """Return a state that continues from a cut."""
        state = cls(0)
        state.cursor, state.have, state.digest = cut.cursor, cut.have, cut.digest
        state.rows = cut.rows[0][: cut.rows[1]]
        state.outbox = deque(cut.outbox)
        state.sent, state.received, state.taken = cut.sent, cut.received, cut.taken
        state.pending = dict(cut.pending)
        state.lived, state.clock = cut.lived, list(cut.clock)
        return state

    def depend_on(self, clock: tuple[int, ...]) -> None:
        """Merge a message's vector clock."""
        self.clock = [mine if mine > theirs else theirs for mine, theirs in zip(self.clock, clock, strict=True)]


def initial_cut(processes: int) -> Cut:
    """Return the state before the first event."""
    return State(processes).cut()
