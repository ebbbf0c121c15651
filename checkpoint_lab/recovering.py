"""A recovery from the host's side: the input of a plan, and the knowledge of a new incarnation."""

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
"""The part of a process that the plan does not name."""


def moves(part: Part) -> bool:
    """Return True if the process leaves its current state."""
    return part.checkpoint is not None or part.initial


def failure(
    graph: Graph,
    table: RollbackTable,
    incarnation: Incarnation,
    processes: Collection[Process],
    failed: frozenset[ProcessId],
    erased_too: bool = False,
) -> Failure:
    """Return the facts that `Protocol.plan` may use. `erased_too`: as if nothing had been erased."""
    return Failure(
        graph,
        incarnation,
        dict(table),
        failed,
        {each.name: records_of(each, table, erased_too) for each in processes},
        {each.name: now(each) for each in processes if each.name not in failed},
    )


def now(process: Process) -> Record:
    """Return a living process's current record, as a reader would get it."""
    assert process.machine is not None  # noqa: S101 - callers ask only for the living
    return as_stored(process.machine.record())


def records_of(process: Process, table: RollbackTable, erased_too: bool = False) -> Records:
    """Return the durable records without those of undone futures."""
    return process.storage.standing(process.name, table, erased_too)


def forget_undone(process: Process, table: RollbackTable) -> None:
    """Discard the records of undone futures: no plan and no new incarnation may read them again."""
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
    """Return the knowledge of a new incarnation of `process`; `shown` is its sink's marker."""
    records = records_of(process, table)
    return Birth(process.name, graph, incarnation, dict(table), settings, checkpoint, records, shown)


def with_row(table: RollbackTable, plan: Plan) -> dict[Incarnation, Line]:
    """Return the table after the fence."""
    return {**table, plan.incarnation: plan.row}


def parts_of(plan: Plan, processes: Collection[Process]) -> Mapping[ProcessId, Part]:
    """Return the part of each process."""
    return {each.name: plan.parts.get(each.name, KEEP) for each in processes}


def channel_of(message: Envelope) -> ChannelId:
    """Return the channel that a message was sent on."""
    return channel_between(message.source, message.target)


def checkpoint_of(process: Process, key: Key, table: RollbackTable) -> Record:
    """Return the record that a part names. Raises `NotDurable` if there is none."""
    record = records_of(process, table).get(key)
    if record is None:
        raise NotDurable(f"the plan sends {process.name} back to {key}, which is not there", [process.name])
    return record


def messages_in(value: Json) -> list[Envelope]:
    """Return all messages that a record contains, at any depth."""
    if isinstance(value, Mapping):
        if value.keys() >= _ENVELOPE:
            return [Envelope.of(value)]
        return [message for each in value.values() for message in messages_in(each)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [message for each in value for message in messages_in(each)]
    return []


_ENVELOPE = {field.name for field in fields(Envelope)}
