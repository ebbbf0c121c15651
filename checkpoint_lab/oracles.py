"""Identity of messages, independent of the machines: a bit per sending, and its sender.

Bits are numbered per channel, so that equivalent orders of events give the same bits.

In a deterministic protocol a process sends the same message again after a failure: same channel, same `seq`, same body;
any other body is a violation. It counts as the same message. On unreliable channels a machine repeats what it sent, in
the same incarnation. Everywhere else a number that is used twice is a violation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NoReturn

from checkpoint_lab.durable import StateCut
from checkpoint_lab.process import GraphApplication, Process
from checkpoint_lab.violations import (
    Acausal,
    ErasedTooEarly,
    LineMovedBack,
    Lost,
    NoEnd,
    NotMaximal,
    Orphan,
    ReusedId,
    StaleDelivery,
    TooEarly,
    WrongEffect,
)
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import Incarnation, ProcessId
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Needs, RecoveryPlan
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
        self.begun: dict[int, Incarnation] = {}
        """Coordinator's incarnation by the number of the snapshot that it has begun."""

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


# -- Oracles of the message world: judgements from the truth (masks and vector clocks), never from a machine's own words.
#
# O1 no orphan, O2 no loss, O3 exactly-once effect, O9 no stale delivery, O10 an end, O11 no output that can be undone.
# The numbers are those of the recovery literature's common model. O1 and O2 judge a protocol that regenerates its sends
# (`deterministic`) after the replay, and any other protocol at every step.


def judge_delivery(truth: Truth, processes: Mapping[ProcessId, Process], at: Process, message: Envelope) -> int:
    """Judge one delivery (O1, O3, O9). Return the message's bit."""
    bit = truth.of(message) or truth.believe(message, at.incarnation)
    if bit is None:
        raise Orphan(f"{at.name} delivers {describe(message)}, which no process sent", [at.name], [describe(message)])
    # `received` is part of the restored state: a delivery that a recovery undid may come again.
    if at.state.received & bit:
        raise WrongEffect(f"{at.name} delivers {describe(message)} twice", [at.name], [describe(message)])
    # a deterministic sender regenerates an undone send, so only the end can tell
    if truth.deterministic:
        return bit
    sender = processes[message.source]
    # a sender that has not joined this incarnation may still undo or repeat its sends
    joined = sender.machine is not None and not sender.frozen and sender.incarnation == at.incarnation
    if joined and not sender.state.sent & bit:
        what = f"{at.name} delivers {describe(message)}, whose send was undone"
        raise StaleDelivery(what, [message.source, at.name], [describe(message)])
    return bit


def judge_restored(truth: Truth, processes: Collection[Process], restored: Process) -> None:
    """O1 between `restored` and every process that has joined the same incarnation."""
    if truth.deterministic:
        return
    for peer in processes:
        if peer.machine is None or peer.frozen or peer.incarnation != restored.incarnation:
            continue
        judge_pair(truth, restored, peer)
        judge_pair(truth, peer, restored)


def judge_pair(truth: Truth, sender: Process, receiver: Process) -> None:
    """O1 for one direction."""
    # what the receiver has got from this sender, less what the sender's present history has sent
    orphans = receiver.state.received & truth.sent_by.get(sender.name, 0) & ~sender.state.sent
    if orphans:
        names = truth.describe(orphans)
        raise Orphan(f"{receiver.name} received what {sender.name} undid: {names}", [sender.name, receiver.name], names)


def judge_rows(shown: list[int], at: Process) -> None:
    """O11: a restored sink still has every row that it published, at the same position."""
    if at.state.rows[: len(shown)] != shown:
        what = f"{at.name} showed {len(shown)} rows; after the recovery it has {len(at.state.rows)} others"
        raise TooEarly(what, [at.name])


def judge_end(app: GraphApplication, truth: Truth, processes: Collection[Process]) -> None:
    """O1, O2, O3 at quiescence: every sent message is received, every effect is that of a run without failures."""
    sent = received = 0
    for process in processes:
        sent |= process.state.sent
        received |= process.state.received
    if received & ~sent:
        names = truth.describe(received & ~sent)
        raise Orphan(f"at the end received and not sent: {names}", (), names)
    if sent & ~received:
        names = truth.describe(sent & ~received)
        raise Lost(f"at the end sent and not received: {names}", (), names)
    for process in processes:
        _judge_effect(app, process)


def _judge_effect(app: GraphApplication, process: Process) -> None:
    expected = app.expected.get(process.name, 0)
    if process.state.have != expected:
        missing, extra = app.names(expected & ~process.state.have), app.names(process.state.have & ~expected)
        raise WrongEffect(f"{process.name} lacks {missing} and has {extra} too many", [process.name], missing + extra)


def judge_idle(process: Process, queued: list[str]) -> None:
    """O10: nothing is held back at the end."""
    if queued or process.state.outbox or process.replay:
        owed = [*queued, *map(str, process.state.outbox), *map(describe, process.replay)]
        raise NoEnd(f"{process.name} holds {sorted(process.held)} and never takes {owed}", [process.name], owed)


def judge_rest(process: Process) -> None:
    """O10: every protocol step that began has ended."""
    machine = process.machine
    if machine is not None and machine.AT_REST and machine.phase not in machine.AT_REST:
        what = f"{process.name} stays {machine.phase.name}: {machine.phase.value}"
        raise NoEnd(what, [process.name])


def judge_row(shown: list[int], place: int, bit: int, at: Process) -> None:
    """O11: a sink that receives a row again receives the one that it published there."""
    if place < len(shown) and shown[place] != bit:
        raise TooEarly(f"{at.name} showed another row {place + 1} than it has after the recovery", [at.name])


def refuse_rows(at: Process, first: int, last: int) -> NoReturn:
    """O11: the sink publishes rows that it does not have."""
    what = f"{at.name} shows rows {first + 1}..{last} of {len(at.state.rows)}"
    raise TooEarly(what, [at.name])


def refuse_undoable_rows(at: Process, last: int, kept: int) -> NoReturn:
    """O11: the sink publishes rows that a failure of all processes would undo."""
    raise TooEarly(f"{at.name} shows its rows up to {last}; if all failed now it would have {kept}", [at.name])


def judge_capture(at: Process, index: int) -> None:
    """O8: indices of one process grow within an incarnation."""
    if (at.incarnation, index) <= at.newest_capture:
        life, before = at.newest_capture
        raise ReusedId(f"{at.name} captures {at.incarnation}.{index} after {life}.{before}", [at.name])
    at.newest_capture = (at.incarnation, index)


def judge_begin(begun: dict[int, Incarnation], message: Envelope) -> None:
    """O8: no incarnation begins a snapshot under the number of an earlier one (rule G3). `begun`: those so far."""
    before = begun.setdefault(message.index, message.incarnation)
    if before != message.incarnation:
        what = f"incarnation {message.incarnation} begins snapshot {message.index}, as incarnation {before} did"
        raise ReusedId(what, [message.source])


def judge_same_plan(plan: RecoveryPlan, fuller: RecoveryPlan) -> None:
    """O12: the erased records would not have changed the plan."""
    if (plan.row, plan.parts) != (fuller.row, fuller.parts):
        changed = [name for name, part in fuller.parts.items() if plan.parts.get(name) != part]
        raise ErasedTooEarly(f"an erased record was needed: row {plan.row}, with it {fuller.row}", changed)


# -- Lines: one cut per process. Oracles judge from masks and vector clocks alone if a job can continue from a line.
#
# O1 no orphan; O13 the same by happened-before; O2 every message in transit is obtainable; O4 no usable line undoes less;
# O5 a later line keeps the content of an earlier one.


CutLine = Mapping[ProcessId, StateCut]


def orphans(line: CutLine) -> int:
    """Return the mask of messages received and not sent."""
    sent = received = 0
    for cut in line.values():
        sent |= cut.sent
        received |= cut.received
    return received & ~sent


def in_transit(line: CutLine) -> int:
    """Return the mask of messages sent and not received."""
    sent = received = 0
    for cut in line.values():
        sent |= cut.sent
        received |= cut.received
    return sent & ~received


def judge_consistent(truth: Truth, line: CutLine, what: str) -> None:
    """Judge O1 and O13."""
    bad = orphans(line)
    if bad:
        names = truth.describe(bad)
        raise Orphan(f"{what}: received and not sent: {names}", sorted(line), names)
    judge_causal(line, what)


def judge_causal(line: CutLine, what: str) -> None:
    """O13: every event that a cut depends on is in the other cuts."""
    for number, (process, cut) in enumerate(line.items()):
        for reader, other in line.items():
            newest = other.clock[number]
            # event numbers of undone histories are never used again, so one bit tells
            if newest and not cut.lived >> newest & 1:
                raise Acausal(
                    f"{what}: {reader} depends on event {newest} of {process}, which is undone", [reader, process]
                )


def judge_obtainable(truth: Truth, line: CutLine, somewhere: Callable[[], int], what: str) -> None:
    """O2: every missing message is in `somewhere()`: on channels, in logs or in replays.

    It is called only if one is missing.
    """
    missing = in_transit(line)
    lost = missing and missing & ~somewhere()
    if lost:
        names = truth.describe(lost)
        raise Lost(f"{what}: in transit and nowhere: {names}", sorted(line), names)


def judge_forward(before: CutLine, line: CutLine, what: str) -> None:
    """O5: the line contains everything that an earlier usable line had."""
    for process, cut in before.items():
        mine = line[process]
        if cut.received & ~mine.received or cut.sent & ~mine.sent:
            raise LineMovedBack(f"{what}: {process} goes back before a line that was called complete", [process])


def judge_maximal(
    line: CutLine, candidates: Mapping[ProcessId, Sequence[StateCut]], somewhere: int | None, what: str
) -> None:
    """O4: no usable combination of `candidates` (oldest first, the first without any message) keeps more of any process.

    `somewhere` as in `judge_obtainable`, None if every message can be read again.
    """
    for name, cut in _greatest(candidates, somewhere).items():
        if _progress(line[name]) < _progress(cut):
            raise NotMaximal(f"{what}: {name} goes back further than it must", [name])


def _greatest(candidates: Mapping[ProcessId, Sequence[StateCut]], somewhere: int | None) -> dict[ProcessId, StateCut]:
    """Return the greatest usable line: each process goes back only from what no usable line can have."""
    at = {name: len(cuts) - 1 for name, cuts in candidates.items()}
    while True:
        line = {name: candidates[name][place] for name, place in at.items()}
        orphaned = orphans(line)
        lost = 0 if somewhere is None else in_transit(line) & ~somewhere
        # Every usable line is at or before this one. There too, an orphan has no sender, a lost message no receiver.
        back = [name for name, cut in line.items() if cut.received & orphaned or cut.sent & lost]
        if not back:
            return line
        for name in back:
            at[name] -= 1


def _progress(cut: StateCut) -> int:
    return cut.lived.bit_count()
