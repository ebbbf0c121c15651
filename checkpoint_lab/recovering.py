"""A recovery from the host's side: what the plan is made from, and what a new life is given."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields

from checkpoint_lab.durable import as_stored
from checkpoint_lab.process import Process
from checkpoint_lab.violations import NotDurable
from checkpoint_protocols.graph import Graph, channel_between
from checkpoint_protocols.ids import ChannelId, Incarnation, ProcessId
from checkpoint_protocols.incarnation import Line, RollbackTable
from checkpoint_protocols.recovery import Birth, Failure, Key, Part, Plan, Record, Records, Settings
from checkpoint_protocols.vocabulary import Envelope, Json

KEEP = Part(None)
"""The part of whoever the plan does not name."""


def moves(part: Part) -> bool:
    """The process leaves its state of now."""
    return part.checkpoint is not None or part.initial


def failure(
    graph: Graph,
    table: RollbackTable,
    incarnation: Incarnation,
    processes: Collection[Process],
    failed: frozenset[ProcessId],
    erased_too: bool = False,
) -> Failure:
    """Everything `Protocol.plan` may go by. `erased_too`: as if nothing had been erased."""
    return Failure(
        graph,
        incarnation,
        dict(table),
        failed,
        {each.name: records_of(each, table, erased_too) for each in processes},
        {each.name: now(each) for each in processes if each.name not in failed},
    )


def now(process: Process) -> Record:
    """A living process's record of now, as a reader would get it."""
    assert process.machine is not None  # noqa: S101 - callers ask only for the living
    return as_stored(process.machine.record())


def records_of(process: Process, table: RollbackTable, erased_too: bool = False) -> Records:
    """Durable records without those of undone futures."""
    return process.storage.standing(process.name, table, erased_too)


def forget_undone(process: Process, table: RollbackTable) -> None:
    """Undone once is undone for ever: nobody is shown these records again, and their writer does not know of them."""
    readable = process.storage.readable()
    undone = readable.keys() - process.storage.standing(process.name, table).keys()
    if undone:
        process.storage.discard(undone)


def birth(
    process: Process,
    graph: Graph,
    incarnation: Incarnation,
    table: RollbackTable,
    settings: Settings,
    checkpoint: Record | None,
    shown: int = 0,
) -> Birth:
    """What a new life of `process` may know; `shown` is its sink's marker."""
    records = records_of(process, table)
    return Birth(process.name, graph, incarnation, dict(table), settings, checkpoint, records, shown)


def with_row(table: RollbackTable, plan: Plan) -> dict[Incarnation, Line]:
    """The table after the fence."""
    return {**table, plan.incarnation: plan.row}


def parts_of(plan: Plan, processes: Collection[Process]) -> Mapping[ProcessId, Part]:
    """Everybody's part."""
    return {each.name: plan.parts.get(each.name, KEEP) for each in processes}


def channel_of(message: Envelope) -> ChannelId:
    """The channel that a message was sent on."""
    return channel_between(message.source, message.target)


def checkpoint_of(process: Process, key: Key, table: RollbackTable) -> Record:
    """The record that a part names. Raises `NotDurable` if there is none."""
    record = records_of(process, table).get(key)
    if record is None:
        raise NotDurable(f"the plan sends {process.name} back to {key}, which is not there", [process.name])
    return record


def messages_in(value: Json) -> list[Envelope]:
    """Every message that a record keeps, wherever in it."""
    if isinstance(value, Mapping):
        if value.keys() >= _ENVELOPE:
            return [Envelope.of(value)]
        return [message for each in value.values() for message in messages_in(each)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [message for each in value for message in messages_in(each)]
    return []


_ENVELOPE = {field.name for field in fields(Envelope)}
