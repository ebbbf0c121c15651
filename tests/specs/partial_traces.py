"""Random schedules of partial recovery as behaviours of `PartialRecovery`, for TLC to accept or reject.

Every step takes its time: writes, also of dead processes, the steps of a recovery, and its time until the decision.
Processes fail during a recovery, some that run are taken for dead, writes fail or are torn, snapshots time out.

The specification does some things in one step, which count here at one moment.  A recovery happens when it is decided: a process
that has not done its part has its future state.  The merge takes a row when it is delivered, so a row that waits for its place in
the order is still on its channel.  A snapshot ends with the first refusal, before the coordinator receives it: its messages
on the way no longer count.  While a process is down there is no state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from checkpoint_lab.durable import StateCut
from checkpoint_lab.faults import Faults
from checkpoint_lab.job_recovery import KEEP, moves
from checkpoint_lab.process import GraphApplication, Outputs, Process
from checkpoint_lab.schedules import Driver
from checkpoint_lab.violations import Violation
from checkpoint_lab.world import Choice
from checkpoint_protocols import record_fields
from checkpoint_protocols.graph import COORDINATOR, Graph, channel_between
from checkpoint_protocols.ids import ChannelId, ProcessId
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Key, Protocol, Record, checkpoint_key
from checkpoint_protocols.snapshots.coordinator import BEGIN, REFUSE, SnapshotCoordinator, messages_in
from checkpoint_protocols.snapshots.partial_recovery import ORDER, PROTOCOL, PartialTask
from checkpoint_protocols.snapshots.worker import BARRIER
from checkpoint_protocols.vocabulary import Envelope
from tests.specs.message_traces import Counted, counts, drawn, number_of
from tests.specs.tla import Step, changes, record, sequence, set_of, traces_module

MODULE = "TracePartialRecovery"
MERGE = Graph("merge", (("s", "m"), ("t", "m"), ("m", "x"), ("m", "y")))
SOURCES, SINKS, TASKS = "st", "xy", "stmxy"
FAULTS = Faults(crashes=6, store_errors=2, suspicions=1, late=1)
ROWS = 12
STEPS = 300
AGAIN = "again"
"""Route of the second sibling."""


class Siblings(GraphApplication):
    """A merge that sends two rows to `x` for each row, as in the specification."""

    @cached_property
    def routes(self) -> dict[str, Outputs]:
        """Return the routes with the second siblings, which lead to no other record."""
        found = dict(super().routes)
        for lineage, outputs in super().routes.items():
            twice = [
                (channel, f"{lineage}>{AGAIN}>x") for channel, _ in outputs if channel == channel_between("m", "x")
            ]
            found[lineage] = tuple(sorted((*outputs, *twice), key=lambda output: output[0]))
            found.update({sibling: () for _, sibling in twice})
        return found


class Merge(Counted):
    """Two sources, a merge, two sinks."""

    def __init__(self, protocol: Protocol, staggered: bool) -> None:
        super().__init__(protocol, MERGE, replace(FAULTS, staggered=staggered), ROWS)
        self.under_way = 0
        """Return the snapshot that can still become complete."""

    def workload(self, graph: Graph, inputs: int, loops: int, ordered: bool) -> GraphApplication:
        """Build rows whose content does not depend on the order in which they were taken."""
        return Siblings(graph, inputs)

    def put(self, process: Process, channel: ChannelId, message: Envelope, bit: int = 0) -> None:
        """A process that refuses a snapshot ends it."""
        super().put(process, channel, message, bit)
        if message.kind == REFUSE and message.index == self.under_way and counts(message, self):
            self.under_way = 0

    @property
    def abandoned(self) -> bool:
        """Return True if the coordinator runs and does not know the snapshot."""
        coordinator = self.processes[COORDINATOR].machine
        return isinstance(coordinator, SnapshotCoordinator) and self.under_way not in coordinator.open

    @property
    def merged(self) -> dict[str, int]:
        """Return the number of rows of each source that the merge has delivered."""
        machine = self.processes[ProcessId("m")].machine
        return got_of(machine.record()) if machine else {}


@dataclass(frozen=True)
class Before:
    """The subject of a choice, and the state before it."""

    under_way: int
    merged: dict[str, int]
    key: Key = ()
    """Key of the record that becomes durable."""
    message: Envelope | None = None
    """The message that its receiver gets, and that counts."""


def before(choice: Choice, world: Merge) -> Before:
    """Read the world before a choice is made."""
    now = Before(world.under_way, world.merged)
    match choice:
        case ("stored", str(name), int(number), "ok"):
            return replace(now, key=world.processes[ProcessId(name)].writes[number].key)
        case ("deliver", str(channel), int(position)):
            message = world.network.peek(ChannelId(channel), position).message
            return replace(now, message=message if counts(message, world) else None)
    return now


def recorded(seed: int, protocol: Protocol = PROTOCOL) -> list[Step]:
    """Return a schedule of the world, up to the first alarm. With every other seed, processes learn of a recovery one by one."""
    world = Merge(protocol, staggered=seed % 2 == 1)
    driver = Driver(world, seed, fault_rate=0.06, timer_rate=0.05)
    steps: list[Step] = []
    with suppress(Violation):
        for choice in drawn(driver, STEPS):
            seen = before(choice, world)
            driver.do(choice)
            steps += _steps(actions_of(choice, world, seen), world)
    return steps


def _steps(actions: Sequence[tuple[str, str]], world: Merge) -> list[Step]:
    """Put the state of the machines after the last of the actions."""
    seen = {} if world.alarm or not actions else shown(world)
    return [*(Step(*action, {}) for action in actions[:-1]), *(Step(*action, seen) for action in actions[-1:])]


def actions_of(choice: Choice, world: Merge, seen: Before) -> list[tuple[str, str]]:
    """Return the actions of a choice in the specification."""
    actions = _made(choice, world, seen)
    ended = seen.under_way and (choice == ("recover",) or not world.under_way or world.abandoned)
    if ended:
        world.under_way = 0
    outcomes = {"refuse", "complete", "fail"} & {action for action, _ in actions}
    return [*actions, ("give up", "")] if ended and not outcomes else actions


def _made(choice: Choice, world: Merge, seen: Before) -> list[tuple[str, str]]:
    match choice:
        case ("read", str(name)):
            return [("read", name)]
        case ("recover",):
            failed = "".join(name for name in TASKS if name in world.planned_for)
            return [("fail", failed)] if failed else []
        case ("restore", str(name)) if name in TASKS:
            return [("join", name)]
        case ("stored", *_) if seen.key:
            return _written(seen.key, world, seen)
        case ("deliver", *_) if seen.message:
            return _handed(seen.message, world, seen)
    return []


def _written(key: Key, world: Merge, seen: Before) -> list[tuple[str, str]]:
    match key[0]:
        case "begun":
            world.under_way = int(key[1])
            world.begun.append(world.under_way)
            return [("begin", "")]
        case "commit":
            world.under_way = 0
            return [("complete", "")]
    return _delivered(world, seen)


def _delivered(world: Merge, seen: Before) -> list[tuple[str, str]]:
    """Return the rows that the merge has delivered since."""
    return [("deliver", name) for name, rows in world.merged.items() if rows > seen.merged[name]]


def _handed(message: Envelope, world: Merge, seen: Before) -> list[tuple[str, str]]:
    if message.kind == APP:
        return _row_handed(message, world, seen)
    if not seen.under_way or message.index != seen.under_way or message.kind not in (BEGIN, BARRIER):
        return []
    if message.kind == BEGIN:
        return [("copy", message.target)]
    return [("barrier" if world.under_way else "refuse", message.source if message.target == "m" else message.target)]


def _row_handed(message: Envelope, world: Merge, seen: Before) -> list[tuple[str, str]]:
    """The merge delivers it at once, lets it wait, or knows it."""
    if message.target in SINKS:
        return [("take", message.target)]
    machine = world.processes[message.target].machine
    waits = isinstance(machine, PartialTask) and machine.waiting
    return _delivered(world, seen) or ([] if waits else [("drop", message.source)])


# -- state of the machines ----------------------------------------------------------------------------------------


class Known(NamedTuple):
    """State of a task: its machine and its application."""

    record: Record
    cut: StateCut


NOTHING: Record = {}


def shown(world: Merge) -> dict[str, str]:
    """Return the state of the machines, as TLA+."""
    tasks = {name: _known(world, name) for name in TASKS}
    copied = [name for name in TASKS if world.under_way and tasks[name].record.get("index") == world.under_way]
    return {
        **_numbers(tasks),
        **{f"have_{name}": _have(world, tasks[name].cut) for name in SINKS},
        **_channels(world, tasks["m"].record),
        "open": str(world.ordinal(world.under_way)),
        "copied": set_of(f'"{name}"' for name in copied),
        "marked": set_of(f'"{name}"' for name in _marked(world)),
        "order": set_of(_order(world)),
        "complete": _complete(world),
    }


def _known(world: Merge, name: str) -> Known:
    """Return a task as it is, or as it will be after its part of the recovery: a new incarnation continues the old record."""
    process = world.processes[ProcessId(name)]
    joined = world.plan is None or process.incarnation == world.incarnation
    part = KEEP if world.plan is None or joined else world.plan.parts.get(process.name, KEEP)
    if moves(part):
        return _stored(world, process, part.checkpoint)
    machine = process.machine
    assert machine is not None
    known = machine.record()
    sent = {str(channel): count for channel, count in machine.sent.items()}
    return Known({**known, "sent": sent} if joined else known, process.state.cut())


def _complete(world: Merge) -> str:
    """Return all tasks in the newest committed snapshot."""
    number = world.decided()
    key = checkpoint_key(number) if number else None
    tasks = {name: _stored(world, world.processes[ProcessId(name)], key) for name in TASKS}
    have = record({name: _have(world, tasks[name].cut) for name in SINKS})
    return record({**_numbers(tasks), "have": have})


def _stored(world: Merge, process: Process, key: Key | None) -> Known:
    storage = process.storage
    return Known(storage.readable()[key], storage.cuts[key]) if key else Known(NOTHING, world.initial)


def _numbers(tasks: Mapping[str, Known]) -> dict[str, str]:
    sent = record_fields.counts(tasks["m"].record.get("sent", {}))
    return {
        "cursor": record({name: str(tasks[name].cut.cursor) for name in SOURCES}),
        "got": record({name: str(rows) for name, rows in got_of(tasks["m"].record).items()}),
        "sent": record({name: str(sent.get(channel_between("m", name), 0)) for name in SINKS}),
    }


def got_of(merge: Record) -> dict[str, int]:
    """Return the number of rows of each source that the merge has delivered, from its record."""
    received = record_fields.counts(merge.get("received", {}))
    return {name: received.get(channel_between(name, "m"), 0) for name in SOURCES}


def _have(world: Merge, cut: StateCut) -> str:
    rows, length = cut.rows
    return sequence([_item(world, world.truth.message(bit)) for bit in rows[:length]])


def _channels(world: Merge, merge: Record) -> dict[str, str]:
    """Return the messages on the way that count, with those that wait at the merge."""
    found = {}
    waiting = messages_in({"messages": merge.get("waiting", ())})
    for channel, (source, target) in world.graph.ends.items():
        held = [message for message in waiting if (message.source, message.target) == (source, target)]
        sent = [*held, *(item.message for item in world.network.queues[channel])]
        found[f"chan_{source}{target}"] = sequence([_item(world, each) for each in sent if _is_open(each, world)])
    return found


def _is_open(message: Envelope, world: Merge) -> bool:
    return counts(message, world) and (message.kind == APP or message.index == world.under_way)


def _item(world: Merge, message: Envelope) -> str:
    if message.kind != APP:
        before = str(message.body)
        return record({"kind": '"barrier"', "id": str(world.ordinal(message.index)), "before": before})
    lineage = str(message.body)
    return f"{lineage[0]}{number_of(lineage)}_{2 if AGAIN in lineage else 1}_{message.seq}"


NAMED_ROW = re.compile(r"\b([st])(\d+)_([12])_(\d+)\b")


def _named(traces: Sequence[Sequence[Step]]) -> dict[str, str]:
    """Name the rows of the traces. They have names because they are few, and TLC has little room for long texts."""
    texts = (text for trace in traces for step in trace for text in step.shown.values())
    found = {row[0]: row for text in texts for row in NAMED_ROW.finditer(text)}
    return {name: _row(*row.groups()) for name, row in found.items()}


def _row(source: str, number: str, nth: str, seq: str) -> str:
    return record({"kind": '"row"', "seq": seq, "source": f'"{source}"', "number": number, "nth": nth})


def _marked(world: Merge) -> list[str]:
    """Return the inputs that the merge holds at the barrier."""
    merge = world.processes[ProcessId("m")].machine
    if not isinstance(merge, PartialTask) or merge.aligning != world.under_way:
        return []
    return [name for name in SOURCES if channel_between(name, "m") in merge.held]


def _order(world: Merge) -> Iterator[str]:
    """Yield the place and source of each logged row that is not erased."""
    for key, kept in world.processes[ProcessId("m")].storage.readable().items():
        if key[0] == ORDER:
            yield f'<<{int(key[1])}, "{str(kept["channel"])[0]}">>'


def trace_files(traces: Sequence[Sequence[Step]]) -> dict[str, str]:
    """Return the module that the trace specification reads."""
    return traces_module("RecordedRecoveries", [changes(trace) for trace in traces], _named(traces))


# -- planted bugs -------------------------------------------------------------------------------------------------


def corrupted(trace: Sequence[Step], what: str) -> list[Step]:
    """Return the bare actions with a wrong one: it breaks a rule of the specification, for any state."""
    steps = [replace(step, shown={}) for step in trace]
    match what:
        case "taken part":
            wrong, action = _first(trace, _refused), "barrier"
        case "other order":
            wrong, action = _first(trace, _repeated), "deliver"
    node = steps[wrong].node if action == "barrier" else SOURCES.replace(steps[wrong].node, "")
    return [*steps[:wrong], Step(action, node, {}), *steps[wrong + 1 :]]


def _first(trace: Sequence[Step], wanted: Callable[[Step, Step], bool]) -> int:
    return next(number + 1 for number, pair in enumerate(pairwise(trace)) if wanted(*pair))


def _refused(_: Step, step: Step) -> bool:
    return step.action == "refuse"


def _repeated(before: Step, step: Step) -> bool:
    """Return True if a row is delivered in the order that was logged before."""
    return step.action == "deliver" and bool(step.shown) and step.shown["order"] == before.shown.get("order")
