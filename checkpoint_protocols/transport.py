"""Reliable control channels over a network that loses and repeats messages: numbers, repetition, deduplication.

Every protocol over plain messages relies on control channels that neither lose nor repeat. Networks do both. One
transport stands between a process and its control channels:

- An outgoing message gets a number (`seq`). The transport repeats it at each timeout until the receiver acknowledges
  that number.
- An incoming message is acknowledged each time and delivered once.
- Order is not guaranteed, and no protocol here needs it.

Numbers belong to one incarnation. A process begins an incarnation once, so a pair of incarnation and number names a
message of a sender for ever. Messages of an earlier incarnation are not repeated: the door of every machine drops
control messages of older incarnations. The transport keeps the numbers it received from the incarnation that a process
joins (`Joined`). The message that announced that incarnation may arrive again.

Seeds 001 and 003 assume such channels without a construction. The numbering is that of the alternating-bit family with
an unbounded window (Bartlett, Scantlebury and Wilkinson 1969; Stenning 1976).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from checkpoint_protocols.graph import control_between
from checkpoint_protocols.ids import Incarnation, ProcessId, TimerId
from checkpoint_protocols.machine import Drop, Effect, Event, Machine, rows
from checkpoint_protocols.vocabulary import Deliver, Envelope, Received, Send, SetTimer, TimerElapsed

HEARD = "heard"
"""Kind of an acknowledgement; its `seq` is the acknowledged number."""

REPEAT = "transport"
"""Name of the timer."""

REPEAT_MS = 400
DOUBLINGS_MAX = 6
"""Delay between repetitions: 400 ms, then twice as long each time, at most 25 s."""


@dataclass(frozen=True, slots=True)
class Asked(Event):
    """The process's machine requests the send of a control message."""

    message: Envelope


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """The process continues in a newer incarnation."""

    newer: Incarnation


@dataclass(slots=True)
class Heard:
    """Numbers received from one sender: all up to one number, and some beyond it. Its size is that of the messages in transit."""

    all_up_to: int = 0
    beyond: set[int] = field(default_factory=set)

    def is_new(self, number: int) -> bool:
        """Return True if the number was not received before, and record it."""
        if number <= self.all_up_to or number in self.beyond:
            return False
        self.beyond.add(number)
        while self.all_up_to + 1 in self.beyond:
            self.all_up_to += 1
            self.beyond.remove(self.all_up_to)
        return True


class TransportPhase(Enum):
    """State of the outgoing messages."""

    QUIET = "everything that was said was heard"
    WAITING = "an acknowledgement is missing"


Q, W = TransportPhase.QUIET, TransportPhase.WAITING
_EVENTS = (Asked, Received, TimerElapsed, Joined)
_HANDLED = {Asked: "_on_asked", Received: "_on_received", TimerElapsed: "_on_timer", Joined: "_on_joined"}


class Transport(Machine[TransportPhase]):
    """Control channels of one process, in both directions.

    It accepts messages of any incarnation; the process's machine judges which of them count.
    """

    PHASES = TransportPhase
    EVENTS = _EVENTS
    TABLE = rows({Q: _HANDLED, W: _HANDLED}, _EVENTS)

    def __init__(self, me: ProcessId, incarnation: Incarnation) -> None:
        super().__init__(Q, incarnation)
        self.me = me
        self.said: dict[tuple[ProcessId, int], Envelope] = {}
        """Unacknowledged messages, by target and number."""
        self.heard: dict[tuple[ProcessId, Incarnation], Heard] = {}
        """Numbers that were delivered, by sender and its incarnation."""
        self.newest = 0
        self._timer = 0
        self._tries = 0

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        said, heard = self.said, self.heard
        self._ensure((self.phase is W) == bool(said), "it waits iff something is not acknowledged")
        if said:
            self._ensure(max([number for _, number in said]) <= self.newest, "what is under way was numbered")
        if heard:
            oldest = min([incarnation for _, incarnation in heard])
            self._ensure(oldest >= self.incarnation, "it remembers nothing of incarnations that are over")

    def _on_asked(self, event: Asked) -> list[Effect]:
        self.newest += 1
        numbered = _numbered(event.message, self.newest)
        self.said[numbered.target, numbered.seq] = numbered
        effects: list[Effect] = [_on_its_way(numbered)]
        # The running timer repeats every unacknowledged message, so this one needs no timer of its own. A timer that a
        # peer out of reach has made long would keep it waiting, and begins again.
        return effects if self.phase is W and not self._tries else [*effects, *self._wait()]

    def _on_received(self, event: Received) -> list[Effect]:
        message = event.message
        if message.kind == HEARD:
            return self._acknowledged(event)
        # Acknowledge every copy, also stale ones: the sender repeats the message until an acknowledgement arrives.
        effects: list[Effect] = [self._acknowledgement(message)]
        if message.incarnation < self.incarnation:
            return [
                *effects,
                Drop(event, f"{message.kind} of incarnation {message.incarnation}: an incarnation that is over"),
            ]
        heard = self.heard.setdefault((message.source, message.incarnation), Heard())
        if not heard.is_new(message.seq):
            return [*effects, Drop(event, f"{message.kind} was handed in before")]
        # Machines know no transport numbers, so the delivered message has number 0 as they sent it.
        return [*effects, Deliver(Received(event.channel, _numbered(message, 0)))]

    def _acknowledged(self, event: Received) -> list[Effect]:
        message = event.message
        # Numbers begin again with each incarnation: a late acknowledgement of an older one may name a number that is in use now.
        if message.incarnation != self.incarnation or (message.source, message.seq) not in self.said:
            return [Drop(event, "nothing is under way under this number")]
        del self.said[message.source, message.seq]
        if not self.said:
            self.phase = Q
        return []

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        # Timers are never cancelled: one that was set again, or has nothing to repeat, is stale.
        if event.timer != self._timer or not self.said:
            return []
        self._tries = min(self._tries + 1, DOUBLINGS_MAX)
        return [*map(_on_its_way, self.said.values()), self._set_timer()]

    def _on_joined(self, event: Joined) -> list[Effect]:
        self._ensure(event.newer >= self.incarnation, "incarnations grow")
        self.incarnation = event.newer
        # Receivers drop control messages of the older incarnation, so they need no repetition.
        self.said, self.newest, self.phase = {}, 0, Q
        # The message that announced this incarnation was heard before the process joined, and may still be repeated.
        self.heard = {
            (name, incarnation): heard
            for (name, incarnation), heard in self.heard.items()
            if incarnation >= event.newer
        }
        return []

    def _wait(self) -> list[Effect]:
        self.phase, self._tries = W, 0
        return [self._set_timer()]

    def _set_timer(self) -> Effect:
        self._timer += 1
        timer = TimerId(self._timer)
        return SetTimer(REPEAT, REPEAT_MS << self._tries, timer, TimerElapsed(REPEAT, timer, 0))

    def _acknowledgement(self, message: Envelope) -> Effect:
        target = message.source
        # In the message's incarnation and not in this process's: its number belongs to that one.
        heard = Envelope(self.me, target, message.incarnation, message.seq, message.index, HEARD, {}, None)
        return _on_its_way(heard)


def _numbered(message: Envelope, seq: int) -> Envelope:
    # `dataclasses.replace` takes twice as long.
    m = message
    return Envelope(m.source, m.target, m.incarnation, seq, m.index, m.kind, m.header, m.body)


def _on_its_way(message: Envelope) -> Send:
    return Send(control_between(message.source, message.target), message)
