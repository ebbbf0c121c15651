"""Random schedules of barriers with a two-phase-commit sink as behaviours of `BarrierCommit`, for TLC to judge.

No epoch is given up: timeouts do not run out, nothing but a publication fails.  An epoch begins when the last is known to
be published.  Anybody crashes, and coordinators are replaced that have not failed; a takeover is the specification's
crash.  What is left of earlier lives is no step: there everybody is back at once, here when the newer life reaches them.
After each step the trace says what the machines and the storage show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from checkpoint_lab.barrier_processes import SinkProcess, TaskProcess
from checkpoint_lab.barrier_storage import BarrierGraph, Record, State
from checkpoint_lab.barrier_world import ROLES, BarrierWorld, Roles
from checkpoint_lab.schedules import Driver
from checkpoint_lab.violations import Violation
from checkpoint_lab.world import Choice
from checkpoint_protocols import barrier as b
from checkpoint_protocols.machine import Effect
from tests.specs.tla import Step, record, sequence, set_of, traces_module

MODULE = "TraceBarrierCommit"
SOURCES, SINK = ("s", "t"), "k"
MERGE = BarrierGraph("merge", {"s": 4, "t": 4}, (("s", "k"), ("t", "k")), (SINK,))
STEPS = 130


class Merge(BarrierWorld):
    """Two sources and a sink. No timeouts; the timer of an epoch runs out when it may begin."""

    def timers(self) -> list[Choice]:
        """The interval's, once everything is published, and those of repeated publications."""
        return [choice for choice in super().timers() if self._due(int(choice[1] or 0), int(choice[2] or 0))]

    def _due(self, index: int, number: int) -> bool:
        process = self.coordinators[index]
        _, event = process.timers[number]
        machine = process.machine
        idle = machine.open_epoch is None and not any(machine.unpublished.values())
        return isinstance(event, b.RetryElapsed) or (isinstance(event, b.IntervalElapsed) and idle)

    def faults(self) -> list[Choice]:
        """Refused decisions and preparations end an epoch: the specification has none that does."""
        return [choice for choice in super().faults() if choice[0] != "stored" or self.lag(choice) == "publish"]


@dataclass(frozen=True)
class Progress:
    """What tells the actions apart that a choice's name does not."""

    life: int
    open: int
    decided: int
    published: int
    captured: frozenset[str]
    stored: frozenset[tuple[str, int]]


def recorded(seed: int, roles: Roles = ROLES) -> list[Step]:
    """A schedule of the world; with wrong machines until an oracle objects."""
    world = Merge(MERGE, roles, faults_max=4)
    driver = Driver(world, seed, fault_rate=0.03, timer_rate=0.1)
    steps: list[Step] = []
    for _ in range(STEPS):
        choice = driver._next()
        if choice is None:
            break
        before, taken = progress(world), _taken(choice, world)
        try:
            driver.do(choice)
        except Violation:
            if roles is ROLES:
                raise
            break
        action = taken or _seen(before, progress(world))
        if action:
            steps.append(Step(*action, shown(world)))
    return steps


def progress(world: Merge) -> Progress:
    """How far the newest life is."""
    durable = world.durable
    under_way = [store[2][0] for store in world.stores if store[0] == "snapshot" and store[2][2] == durable.incarnation]
    return Progress(
        max(1, durable.incarnation),
        (world.coordinator and world.coordinator.machine.open_epoch) or 0,
        durable.base,
        durable.last_published(SINK),
        frozenset(name for name in under_way if name in SOURCES),
        _stored(world),
    )


def _stored(world: Merge) -> frozenset[tuple[str, int]]:
    """Whose part of which epoch is durable; the sink's is its state and its rows."""
    durable = world.durable
    keys = [key for key in durable.snapshots if key[2] == durable.incarnation]
    return frozenset((key[0], key[1]) for key in keys if key[0] != SINK or _staged(world, key[1]))


def _staged(world: Merge, epoch: int) -> bool:
    return (SINK, epoch, world.durable.incarnation) in world.durable.prepared


def _joined(world: Merge, name: str) -> TaskProcess | None:
    """The task, if it lives and has met the newest life."""
    task = world.tasks[name]
    mine = task is not None and task.machine.incarnation == world.durable.incarnation and not task.restoring
    return task if mine else None


def _taken(choice: Choice, world: Merge) -> tuple[str, str] | None:
    """Rows are read, rows and barriers are taken: by tasks of the newest life, and of the newest life."""
    match choice:
        case ("emit", str(name)):
            return ("read", name) if _joined(world, name) else None
        case ("receive", str(source), "k"):
            kind, incarnation, *_ = world.channels[source, SINK][0]
            counts = _joined(world, SINK) and incarnation == world.durable.incarnation
            return ("take row" if kind == "rows" else "take barrier", source) if counts else None
    return None


def _seen(before: Progress, after: Progress) -> tuple[str, str] | None:
    """What has happened in the specification, if anything: at most one thing does."""
    if after.life > before.life:
        return ("crash", "")
    captured, stored = after.captured - before.captured, after.stored - before.stored
    things = [
        *[("barrier", name) for name in captured],
        *[("store", name) for name, _ in stored],
        *([("begin", "")] if after.open > before.open else []),
        *([("decide", "")] if after.decided > before.decided else []),
        *([("publish", "")] if after.published > before.published else []),
    ]
    assert len(things) <= 1, things
    return things[0] if things else None


# -- what the machines show ---------------------------------------------------------------------------------------


def shown(world: Merge) -> dict[str, str]:
    """What the machines and the storage show, as TLA+."""
    now, sink = progress(world), _joined(world, SINK)
    joined = [name for name in (*SOURCES, SINK) if _joined(world, name)]
    cursors = {name: task.state.cursor for name in SOURCES if (task := world.tasks[name])}
    coordinated = world.coordinator is not None and not world.needs_takeover
    return {
        "inc": str(now.life),
        "open": str(now.open),
        "coordinated": str(coordinated).upper(),
        "joined": set_of(f'"{name}"' for name in joined),
        "cursor": record({name: str(cursors.get(name, 0)) for name in SOURCES}),
        "chan": record({name: _channel(world, name) for name in SOURCES}),
        **(_sink(sink) if isinstance(sink, SinkProcess) else {}),
        "stored": set_of(f'<<"{name}", {epoch}>>' for name, epoch in sorted(now.stored)),
        "decided": str(now.decided),
        "settled": str(now.published),
        **_storage(world),
    }


def _channel(world: Merge, source: str) -> str:
    """What is on the way in the newest life."""
    found = [
        (kind, body if kind == "barrier" else _number(body))
        for kind, incarnation, body, _ in world.channels[source, SINK]
        if incarnation == world.durable.incarnation
    ]
    return sequence(f'[kind |-> "{"row" if kind == "rows" else kind}", number |-> {number}]' for kind, number in found)


def _number(row: Record) -> int:
    """1 for the first row of a source."""
    return int(str(row[-1])) + 1


def _sink(sink: SinkProcess) -> dict[str, str]:
    got = _received(sink.state)
    unprepared = [str(row[0]) for row in sink.open_rows]
    return {
        "got": record({name: str(got[name]) for name in SOURCES}),
        "done": record({name: str(got[name] - unprepared.count(name)) for name in SOURCES}),
        "blocked": set_of(f'"{name}"' for name in sorted(sink.machine.held)),
    }


def _received(state: State) -> dict[str, int]:
    return {name: len(state.received.get(name, ())) for name in SOURCES}


def _storage(world: Merge) -> dict[str, str]:
    """What a crash goes back to, and what the world sees."""
    durable = world.durable
    taken = _received(durable.state(SINK))
    rows = [row for _, each in durable.published.get(SINK, []) for row in each]
    visible = {name: sequence(str(_number(row)) for row in rows if row[0] == name) for name in SOURCES}
    return {
        "taken": record({name: str(count) for name, count in taken.items()}),
        "read": record({name: str(durable.state(name).cursor) for name in SOURCES}),
        "visible": record(visible),
    }


def trace_files(traces: Sequence[Sequence[Step]]) -> dict[str, str]:
    """The module that the trace specification reads."""
    return traces_module("RecordedBarriers", traces)


# -- wrong on purpose ---------------------------------------------------------------------------------------------


class TakesFirst(b.Operator):
    """A task that captures at the first barrier."""

    def _arrive(self, event: b.BarrierArrived) -> list[Effect]:
        return self._take_snapshot(event.epoch)


UNALIGNED: Roles = {"operator": TakesFirst}


def corrupted(trace: Sequence[Step], what: str) -> list[Step]:
    """The bare actions with one of them wrong: a rule of the specification is broken, whatever is shown."""
    steps = [replace(step, shown={}) for step in trace]
    decided = next(number for number, step in enumerate(steps) if step.action == "decide")
    match what:
        case "not stored":
            del steps[max(number for number in range(decided) if steps[number].action == "store")]
        case "shown early":
            published = next(number for number, step in enumerate(steps) if step.action == "publish")
            steps[decided], steps[published] = steps[published], steps[decided]
        case "not held":
            number, name = next(found for found in enumerate(map(_waiting, trace), 1) if found[1])
            steps.insert(number, Step("take row", name, {}))
    return steps


def _waiting(step: Step) -> str:
    """A source whose row is next, behind a barrier at which its input is held; empty if there is none."""
    held = (name for name in SOURCES if f'"{name}"' in step.shown.get("blocked", ""))
    return next((name for name in held if f'{name} |-> <<[kind |-> "row"' in step.shown["chan"]), "")
