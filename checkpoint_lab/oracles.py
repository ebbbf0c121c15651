"""Oracles of the message world: judgements from the truth (masks and vector clocks), never from a machine's own words.

O1 no orphan, O2 no loss, O3 exactly-once effect, O9 no stale delivery, O10 an end, O11 no output that can be undone.
The numbers are those of the recovery literature's common model. O1 and O2 judge a protocol that regenerates its sends
(`deterministic`) after the replay, and any other protocol at every step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NoReturn

from checkpoint_lab.process import Process
from checkpoint_lab.truth import Truth, describe
from checkpoint_lab.violations import (
    ErasedTooEarly,
    Lost,
    NoEnd,
    Orphan,
    ReusedId,
    StaleDelivery,
    TooEarly,
    WrongEffect,
)
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.recovery import Plan
from checkpoint_protocols.vocabulary import Envelope

if TYPE_CHECKING:
    from checkpoint_lab.application import Application


def judge_delivery(truth: Truth, processes: Mapping[ProcessId, Process], at: Process, message: Envelope) -> int:
    """Judge one delivery (O1, O3, O9). Return the message's bit."""
    bit = truth.of(message) or truth.believe(message, at.incarnation)
    if bit is None:
        raise Orphan(f"{at.name} delivers {describe(message)}, which nobody sent", [at.name], [describe(message)])
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
    orphans = receiver.state.received & truth.sent_by.get(sender.name, 0) & ~sender.state.sent
    if orphans:
        names = truth.describe(orphans)
        raise Orphan(f"{receiver.name} received what {sender.name} undid: {names}", [sender.name, receiver.name], names)


def judge_rows(shown: list[int], at: Process) -> None:
    """O11: a restored sink still has every row that it published, at the same position."""
    if at.state.rows[: len(shown)] != shown:
        what = f"{at.name} showed {len(shown)} rows; after the recovery it has {len(at.state.rows)} others"
        raise TooEarly(what, [at.name])


def judge_end(app: Application, truth: Truth, processes: Collection[Process]) -> None:
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


def _judge_effect(app: Application, process: Process) -> None:
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


def judge_same_plan(plan: Plan, fuller: Plan) -> None:
    """O12: the erased records would not have changed the plan."""
    if (plan.row, plan.parts) != (fuller.row, fuller.parts):
        changed = [name for name, part in fuller.parts.items() if plan.parts.get(name) != part]
        raise ErasedTooEarly(f"an erased record was needed: row {plan.row}, with it {fuller.row}", changed)
