"""What a reliable control channel is made of: numbers, repetitions, and a memory of what was heard.

Every protocol over plain messages counts on control channels that neither lose nor repeat.  Networks do both.  One
transport stands between a process and its control channels: what the process's machine says leaves with a number (`seq`),
and again whenever a timer runs out, until the other side has said that it heard that number; what comes is acknowledged
each time and handed in once.  Order is not promised, and no protocol here needs it.

Numbers are those of one incarnation: a pair of incarnation and number names a message of a sender for ever, because a process
begins an incarnation once.  What an earlier one had under way is not repeated: the door of every machine drops control messages of
older incarnations, so nobody waits for them.  What was heard of the newer incarnation that a process joins is still heard
when it has joined (`Joined`): the message that told it may come again.

Seeds 003 and 006 assume such channels and say nothing of how; the numbering is that of the alternating-bit family with an
unbounded window (Bartlett, Scantlebury and Wilkinson 1969; Stenning 1976).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from checkpoint_protocols.graph import control_between
from checkpoint_protocols.ids import Incarnation, ProcessId, TimerId
from checkpoint_protocols.machine import Drop, Effect, Event, Machine, rows
from checkpoint_protocols.vocabulary import Deliver, Envelope, Received, Send, SetTimer, TimerElapsed

HEARD = "heard"
"""Kind of an acknowledgement; its `seq` is the number that was heard."""

REPEAT = "transport"
"""Name of the timer."""

REPEAT_MS = 400
DOUBLINGS_MAX = 6
"""From one repetition to the next: 400 ms, then twice as long each time, at most 25 s."""


@dataclass(frozen=True, slots=True)
class Asked(Event):
    """The process's machine wants a control message to be sent."""

    message: Envelope


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """The process goes on in a newer incarnation."""

    newer: Incarnation


@dataclass(slots=True)
class Heard:
    """Numbers of one sender: all up to one, and some beyond it. As small as what is under way."""

    all_up_to: int = 0
    beyond: set[int] = field(default_factory=set)

    def is_new(self, number: int) -> bool:
        """It was not heard before; from now on it was."""
        if number <= self.all_up_to or number in self.beyond:
            return False
        self.beyond.add(number)
        while self.all_up_to + 1 in self.beyond:
            self.all_up_to += 1
            self.beyond.remove(self.all_up_to)
        return True


class TransportPhase(Enum):
    """Whether something has to be repeated."""

    QUIET = "everything that was said was heard"
    WAITING = "an acknowledgement is missing"


Q, W = TransportPhase.QUIET, TransportPhase.WAITING
_EVENTS = (Asked, Received, TimerElapsed, Joined)
_HANDLED = {Asked: "_on_asked", Received: "_on_received", TimerElapsed: "_on_timer", Joined: "_on_joined"}


class Transport(Machine[TransportPhase]):
    """The control channels of one process, both ways. It hears of any incarnation: whose words count is the machine's to say."""

    PHASES = TransportPhase
    EVENTS = _EVENTS
    TABLE = rows({Q: _HANDLED, W: _HANDLED}, _EVENTS)

    def __init__(self, me: ProcessId, incarnation: Incarnation, repeat_ms: int = REPEAT_MS) -> None:
        super().__init__(Q, incarnation)
        self.me = me
        self.repeat_ms = repeat_ms
        self.said: dict[tuple[ProcessId, int], Envelope] = {}
        """By target and number: what nobody has acknowledged."""
        self.heard: dict[tuple[ProcessId, Incarnation], Heard] = {}
        """By sender and its incarnation: which numbers were handed in."""
        self.newest = 0
        self._timer = 0
        self._tries = 0

    def validate(self) -> None:
        """What always holds between two events."""
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
        return effects if self.phase is W else [*effects, *self._wait()]

    def _on_received(self, event: Received) -> list[Effect]:
        message = event.message
        if message.kind == HEARD:
            return self._acknowledged(event)
        effects: list[Effect] = [self._acknowledgement(message)]
        if message.incarnation < self.incarnation:
            return [
                *effects,
                Drop(event, f"{message.kind} of incarnation {message.incarnation}: an incarnation that is over"),
            ]
        heard = self.heard.setdefault((message.source, message.incarnation), Heard())
        if not heard.is_new(message.seq):
            return [*effects, Drop(event, f"{message.kind} was handed in before")]
        return [*effects, Deliver(Received(event.channel, _numbered(message, 0)))]

    def _acknowledged(self, event: Received) -> list[Effect]:
        message = event.message
        if message.incarnation != self.incarnation or (message.source, message.seq) not in self.said:
            return [Drop(event, "nothing is under way under this number")]
        del self.said[message.source, message.seq]
        if not self.said:
            self.phase = Q
        return []

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        if event.timer != self._timer or not self.said:
            return []
        self._tries = min(self._tries + 1, DOUBLINGS_MAX)
        return [*map(_on_its_way, self.said.values()), self._set_timer()]

    def _on_joined(self, event: Joined) -> list[Effect]:
        self._ensure(event.newer >= self.incarnation, "incarnations grow")
        self.incarnation = event.newer
        self.said, self.newest, self.phase = {}, 0, Q
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
        return SetTimer(REPEAT, self.repeat_ms << self._tries, timer, TimerElapsed(REPEAT, timer, 0))

    def _acknowledgement(self, message: Envelope) -> Effect:
        """It names the incarnation that is answered, whoever answers: numbers are of that incarnation."""
        target = message.source
        heard = Envelope(self.me, target, message.incarnation, message.seq, message.index, HEARD, {}, None)
        return _on_its_way(heard)


def _numbered(message: Envelope, seq: int) -> Envelope:
    """`dataclasses.replace`, which takes twice as long."""
    m = message
    return Envelope(m.source, m.target, m.incarnation, seq, m.index, m.kind, m.header, m.body)


def _on_its_way(message: Envelope) -> Send:
    return Send(control_between(message.source, message.target), message)
