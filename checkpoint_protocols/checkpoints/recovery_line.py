"""The maximum recovery line, and the reasons for its place (seed 004, "Uncoordinated Checkpointing").

A line gives every process one candidate: a durable checkpoint, or a survivor's current state. It can be recovered if
both hold:

- No receiver knows a message that its sender no longer has sent (no orphan).
- Every message that is sent but not received can be replayed (nothing is lost).

Each fault names the process that has to go back: an orphan its receiver, a lost message its sender. Both rules are
monotone, so going back until no fault remains ends at the one greatest line. The seed directs its dependency edges from
receiver to sender. That is the rule for lost messages, and it does not find orphans (erratum E7). Over channels that
can be read again, a Kafka topic within its retention, nothing is lost and only orphans count.

The input is plain: candidates per process, oldest first, with the messages sent and received per channel. So it is the
same for the records of a protocol and for a directory of Spark checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from checkpoint_protocols.ids import ChannelId, ProcessId
from checkpoint_protocols.machine import ProtocolViolation

MessageId = tuple[int, int]
"""(incarnation, seq): one message of a channel without order."""

Message = int | MessageId
"""One message of a channel: its number if the channel is FIFO."""

Messages = int | frozenset[MessageId]
"""Messages that passed one end of a channel: `n` stands for 1 to n of a FIFO channel; ids for a channel without order.
"""

Ends = Mapping[ChannelId, tuple[ProcessId, ProcessId]]
"""(source, target) of every channel."""

Lost = Mapping[ChannelId, Collection[Message]]
"""Messages that cannot be replayed: neither kept by the channel nor logged. A `range` of numbers costs nothing."""

NOTHING_KEPT = range(2**63 - 1)
"""Every message of a FIFO channel, for `Lost`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A state that a process can go back to. `index` is its own number, None for the current state.

    Channels not named carried no messages.
    """

    index: int | None
    sent: Mapping[ChannelId, Messages] = field(default_factory=dict)
    received: Mapping[ChannelId, Messages] = field(default_factory=dict)

    def __str__(self) -> str:
        return "now" if self.index is None else f"checkpoint {self.index}"


class StepCause(Enum):
    """Reason why a process goes back."""

    FAILED = "its state is gone"
    ORPHAN = "it received what is no longer sent"
    LOST = "it sent a message that no process has any more"


@dataclass(frozen=True, slots=True)
class LineStep:
    """One process goes back once, from `left` to `taken`; None where there is no candidate.

    For orphans and lost messages: `channel`, the process and candidate at its other end, the first of `count` messages.
    """

    process: ProcessId
    cause: StepCause
    left: Candidate | None
    taken: Candidate | None
    channel: ChannelId | None = None
    other: ProcessId | None = None
    other_at: Candidate | None = None
    first: Message = 0
    count: int = 0

    def __str__(self) -> str:
        if self.cause is StepCause.FAILED:
            return f"{self.process} failed: {self.taken or 'nothing'} is the newest that is durable"
        target = f"to {self.taken}" if self.taken else "but keeps nothing that is old enough"
        return f"{self.process} goes back from {self.left} {target}: {self._evidence()}"

    def _evidence(self) -> str:
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        what = f"message {self.first}{more} of {self.channel}"
        if self.cause is StepCause.ORPHAN:
            return f"it received {what}, which {self.other} at {self.other_at} has not sent"
        return f"it sent {what}, which {self.other} at {self.other_at} has not received and no log has"


@dataclass(frozen=True, slots=True)
class RecoveryLine:
    """The result. `steps` holds every move of the search, in order; `missing` is the process without a candidate that fits."""

    chosen: Mapping[ProcessId, Candidate]
    steps: tuple[LineStep, ...]
    missing: ProcessId | None = None

    def why(self, process: ProcessId) -> tuple[LineStep, ...]:
        """Return the chain of reasons that put `process` at its candidate, the failure first. Empty: it stays."""
        chain: list[LineStep] = []
        wanted, before = process, len(self.steps)
        while (number := self._last_step(wanted, before)) is not None:
            chain.append(self.steps[number])
            # The reason of a move is the place where the other end stood then, so only earlier moves of it count.
            wanted, before = self.steps[number].other or wanted, number
            if chain[-1].cause is StepCause.FAILED:
                break
        return tuple(reversed(chain))

    def explain(self, process: ProcessId) -> str:
        """Return `why` for people, one sentence a line."""
        return "\n".join(map(str, self.why(process))) or f"{process} stays: nothing makes it go back"

    def _last_step(self, process: ProcessId, before: int) -> int | None:
        numbers = (number for number in range(before - 1, -1, -1) if self.steps[number].process == process)
        return next(numbers, None)


def recovery_line(
    candidates: Mapping[ProcessId, Sequence[Candidate]],
    channels: Ends,
    failed: Collection[ProcessId] = (),
    lost: Lost | None = None,
) -> RecoveryLine:
    """Return the greatest line without orphans and without lost messages.

    `candidates` are per process, oldest first. `channels` maps each channel to (source, target). `failed` only serves
    the explanation: failed processes have no current state. `lost` are the messages that cannot be replayed. Raises
    `ProtocolViolation` if candidates are not in order, or count a channel in two ways.
    """
    _check_order(candidates)
    return _LineSearch(candidates, channels, lost or {}).run(failed)


def orphans(sender: Candidate, receiver: Candidate, channel: ChannelId) -> Collection[Message]:
    """Return the messages that `receiver` knows and `sender` has not sent."""
    return _beyond(receiver.received.get(channel, 0), sender.sent.get(channel, 0))


def in_transit(sender: Candidate, receiver: Candidate, channel: ChannelId) -> Collection[Message]:
    """Return the messages that `sender` has sent and `receiver` does not know; they are to be replayed."""
    return _beyond(sender.sent.get(channel, 0), receiver.received.get(channel, 0))


class _LineSearch:
    """Goes back channel by channel until a sweep over all of them changes nothing."""

    def __init__(self, candidates: Mapping[ProcessId, Sequence[Candidate]], channels: Ends, lost: Lost) -> None:
        self.candidates = candidates
        self.channels = channels
        self.lost = lost
        self.at = {process: len(known) - 1 for process, known in candidates.items()}
        self.steps: list[LineStep] = []

    def run(self, failed: Collection[ProcessId]) -> RecoveryLine:
        self.steps += [LineStep(p, StepCause.FAILED, None, self._now(p)) for p in self.at if p in failed]
        missing = next((p for p, number in self.at.items() if number < 0), None)
        before = -1
        # Each step back can create new faults on channels that were checked before (the domino effect), so all are checked
        # again.
        while missing is None and before < len(self.steps):
            before = len(self.steps)
            # Each call moves a process back; the generator stops only at a process that has no candidate left.
            missing = next((p for c in self.channels for p in (self._orphans(c), self._lost(c)) if p), None)
        if missing:
            return RecoveryLine({}, tuple(self.steps), missing)
        chosen = {process: known[self.at[process]] for process, known in self.candidates.items()}
        return RecoveryLine(chosen, tuple(self.steps))

    def _now(self, process: ProcessId) -> Candidate | None:
        known = self.candidates[process]
        return known[self.at[process]] if known else None

    def _orphans(self, channel: ChannelId) -> ProcessId | None:
        """Move the receiver back to before its first orphan. Return the receiver if it has no such candidate."""
        sender, receiver = self.channels[channel]
        at = self._now(sender)
        assert at is not None  # noqa: S101 - for the type checker: the search has ended otherwise
        faults = (orphans(at, candidate, channel) for candidate in self._back(receiver))
        return self._go(StepCause.ORPHAN, receiver, channel, sender, faults)

    def _lost(self, channel: ChannelId) -> ProcessId | None:
        """Move the sender back to before its first lost message. Return the sender if it has no such candidate."""
        # A lost message sends its sender back: it is then not sent yet, and will be sent again (E7: the seed's direction).
        gone = self.lost.get(channel, ())
        sender, receiver = self.channels[channel]
        at = self._now(receiver)
        if not gone or at is None:
            return None
        faults = (_common(in_transit(candidate, at, channel), gone) for candidate in self._back(sender))
        return self._go(StepCause.LOST, sender, channel, receiver, faults)

    def _back(self, process: ProcessId) -> Iterator[Candidate]:
        return (self.candidates[process][number] for number in range(self.at[process], -1, -1))

    def _go(
        self,
        cause: StepCause,
        process: ProcessId,
        channel: ChannelId,
        other: ProcessId,
        faults: Iterator[Collection[Message]],
    ) -> ProcessId | None:
        """Go back to the first candidate without faults. `faults` are those of the candidates, from the present one back."""
        left, found = self._now(process), next(faults)
        if not found:
            return None
        # The present candidate has faults; skip each older one that has faults, too.
        self.at[process] -= 1 + sum(1 for _ in _while_true(faults))
        fits = self.at[process] >= 0
        taken = self._now(process) if fits else None
        first = found[0] if isinstance(found, range) else min(found)
        self.steps.append(LineStep(process, cause, left, taken, channel, other, self._now(other), first, len(found)))
        return None if fits else process


def _while_true(faults: Iterator[Collection[Message]]) -> Iterator[None]:
    for fault in faults:
        if not fault:
            return
        yield None


def _beyond(these: Messages, those: Messages) -> range | frozenset[MessageId]:
    """Return the messages in `these` and not in `those`."""
    if isinstance(these, int) and isinstance(those, int):
        return range(those + 1, these + 1)
    return _ids(these) - _ids(those)


def _ids(messages: Messages) -> frozenset[MessageId]:
    if not isinstance(messages, int):
        return messages
    if messages:
        raise ProtocolViolation(f"one end of a channel counts {messages} messages, the other names them")
    return frozenset()


def _common(window: Collection[Message], gone: Collection[Message]) -> Collection[Message]:
    """Return the messages of the window that are gone. Two ranges are intersected without iteration."""
    if isinstance(window, range) and isinstance(gone, range):
        return range(max(window.start, gone.start), min(window.stop, gone.stop))
    short, long = (window, gone) if isinstance(gone, range) else (gone, window)
    return frozenset(message for message in short if message in long)


def _check_order(candidates: Mapping[ProcessId, Sequence[Candidate]]) -> None:
    for process, known in candidates.items():
        for older, newer in pairwise(known):
            if _shrinks(older.sent, newer.sent) or _shrinks(older.received, newer.received):
                raise ProtocolViolation(
                    f"the candidates of {process} are not in order: {newer} knows less than {older}"
                )


def _shrinks(older: Mapping[ChannelId, Messages], newer: Mapping[ChannelId, Messages]) -> bool:
    return any(_beyond(messages, newer.get(channel, 0)) for channel, messages in older.items())
