"""The world of the shipped barrier machines: FIFO channels, delayed stores, timers, crashes, zombies.

Tasks and sinks fail one by one. A replaced coordinator continues as a zombie until it learns of its replacement. A sink
is a task and a participant in two-phase commit in one process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Any

from checkpoint_lab.barrier_lives import turned_away
from checkpoint_lab.barrier_processes import LIMITS, CoordinatorProcess, SinkProcess, TaskProcess
from checkpoint_lab.barrier_storage import BarrierGraph, Channel, Durable, Record, SnapshotKey, State, ensure
from checkpoint_lab.picture import of_attributes
from checkpoint_lab.world import Choice, World
from checkpoint_protocols import barrier as b
from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation
from checkpoint_protocols.machine import Effect, Event, Machine

Roles = Mapping[str, Any]
"""Machine classes by role; a test replaces one."""

FAULTS_MAX = 1_000_000

ROLES: Roles = {"coordinator": b.Coordinator, "operator": b.Operator, "sink": b.SinkParticipant}


class BarrierWorld(World):
    """A barrier job. `newest_marker_only`: a source sees only the newest of the barriers that it has not seen."""

    LAGGARDS = ("", "snapshot", "decide", "prepare", "publish", "ask", "restore", "message", "receive")
    FLEETING = frozenset({"fail", "silent"})

    def __init__(
        self,
        graph: BarrierGraph,
        roles: Roles = ROLES,
        newest_marker_only: bool = False,
        faults_max: int = FAULTS_MAX,
        limits: b.Limits = LIMITS,
    ) -> None:
        self.graph = graph
        self.limits = limits
        self.roles = {**ROLES, **roles}
        self.newest_marker_only = newest_marker_only
        self.durable = Durable(graph)
        self.now = 0
        self.segments: list[Record] = []
        self.channels: dict[Channel, deque[tuple[Any, ...]]] = {edge: deque() for edge in graph.edges}
        self.channels.update({("", source): deque() for source in graph.sources})
        self.messages: list[tuple[str, Event, int]] = []
        self.stores: list[tuple[Any, ...]] = []
        self.tasks: dict[str, TaskProcess | None] = dict.fromkeys(graph.tasks)
        self.coordinators: list[CoordinatorProcess] = []
        self.lives = 0
        self.needs_takeover = True
        self.stopped = 0
        """The coordinator's incarnation that got the stop request."""
        self.faults_left = faults_max
        self.uid = 0
        self.counted: dict[str, int] = {}

    # -- requests of processes -----------------------------------------------------------------------------------

    def notify(self, source: str, target: str, event: Event) -> None:
        """Send a control message: reliable while the target lives, and unordered."""
        self.messages.append((target, event, self._sent(source, type(event).__name__)))

    def store(self, kind: str, life: int, *what: Any) -> None:
        """Begin a write."""
        self.stores.append((kind, life, *what))

    def send(self, source: str, target: str, kind: str, incarnation: int, body: Any) -> None:
        """Send rows or a barrier, in order."""
        label = "/".join(map(str, body)) if kind == "rows" else f"barrier {body}"
        self.channels[source, target].append((kind, incarnation, body, self._sent(source, label)))

    def _sent(self, source: str, label: str) -> int:
        """Return the number of a message for diagrams; 0 if moments are not recorded."""
        if self.moments is None:
            return 0
        self.uid += 1
        self.tell(source, "send", label, self.uid)
        return self.uid

    def hand(self, machine: Machine[Any], event: Event) -> list[Effect]:
        """Hand one event to a machine and return its effects. O9: an event of an earlier incarnation is rejected."""
        if self.cells is not None:
            self.cells.add((type(machine).__name__, machine.phase.name, type(event).__name__))
        theirs: int | None = getattr(event, "incarnation", None)
        # a message of a newer incarnation is the machine's own concern: it may have to restore
        if theirs is None or theirs >= machine.incarnation:
            return machine.handle(event)
        self.count("message of an earlier life")
        return turned_away(machine, event)

    def count(self, what: str) -> None:
        """Count one event, for reports."""
        self.counted[what] = self.counted.get(what, 0) + 1

    def offer_barrier(self, source: str, epoch: int, incarnation: int) -> None:
        """Put a barrier in front of a source, as if on a channel of its own."""
        channel = self.channels["", source]
        if self.newest_marker_only:
            # the control source's offset counts markers, so a source may skip all but the newest
            kept = [item for item in channel if item[1] != incarnation]
            channel.clear()
            channel.extend(kept)
        channel.append(("barrier", incarnation, epoch, 0))

    # -- what can happen -------------------------------------------------------------------------------------

    @property
    def coordinator(self) -> CoordinatorProcess | None:
        """The coordinator of the newest incarnation, if it lives."""
        newest = self.coordinators[-1] if self.coordinators else None
        current = newest is not None and newest.machine.incarnation == self.durable.incarnation
        return newest if current else None

    def choices(self) -> list[Choice]:
        """Return all choices except faults and timers."""
        return [
            *(("emit", name) for name, task in self.tasks.items() if task and self._can_emit(task)),
            *(("receive", *each) for each, items in self.channels.items() if items and self._can_receive(*each)),
            *(("message", number) for number in range(len(self.messages))),
            *(("stored", number, "ok") for number in range(len(self.stores))),
            *((("takeover",),) if self.needs_takeover else ()),
            *(("restart", name) for name, task in self.tasks.items() if task is None and not self.needs_takeover),
        ]

    def timers(self) -> list[Choice]:
        """Return the timers of all coordinators, zombies included, the earliest first."""
        found = [
            (due, index, number)
            for index, coordinator in enumerate(self.coordinators)
            for number, (due, _) in enumerate(coordinator.timers)
        ]
        return [("timer", index, number) for _, index, number in sorted(found)]

    def faults(self) -> list[Choice]:
        """Return crashes, refused and unanswered writes, and a takeover without a failure."""
        if not self.faults_left:
            return []
        return [
            *(("crash", name) for name, task in self.tasks.items() if task),
            *(("crash coordinator", index) for index in range(len(self.coordinators))),
            *(
                ("stored", number, how)
                for number, store in enumerate(self.stores)
                for how in FAILURES.get(store[0], ())
            ),
            *((("usurp",),) if self.coordinator else ()),
        ]

    def _can_emit(self, task: TaskProcess) -> bool:
        return not task.restoring and task.state.cursor < self.graph.sources.get(task.name, 0)

    def _can_receive(self, source: str, target: str) -> bool:
        task = self.tasks[target]
        return task is not None and not task.restoring and source not in task.machine.held

    # -- making it happen ------------------------------------------------------------------------------------

    def lag(self, choice: Choice) -> str:
        """Return the kind of a write by its content, of any other choice by its kind."""
        if choice[0] == "stored":
            return str(self.stores[int(choice[1] or 0)][0])
        return str(choice[0])

    def do(self, choice: Choice) -> None:
        """Perform the choice: call the method of its kind."""
        kind, *what = choice
        self.step += 1
        if kind in FAULTY or (kind == "stored" and what[1] != "ok"):
            self.faults_left -= 1
        getattr(self, "_do_" + str(kind).replace(" ", "_"))(*what)
        self._collect_ends()

    def _do_emit(self, name: str) -> None:
        task = self.tasks[name]
        assert task is not None  # noqa: S101 - else the choice does not exist
        task.emit(self)

    def _do_receive(self, source: str, target: str) -> None:
        task = self.tasks[target]
        assert task is not None  # noqa: S101 - else the choice does not exist
        kind, incarnation, body, uid = self.channels[source, target][0]
        self.tell(target, "receive", kind, uid or -1)
        event: Event
        if kind == "barrier":
            event = b.BarrierArrived(ChannelId(source), Epoch(body), Incarnation(incarnation))
        else:
            self.segments.append(body)
            event = b.RowsArrived(ChannelId(source), Incarnation(incarnation), len(self.segments) - 1)
        task.take(self, event)
        # a restoring sink restarts and takes the same item again
        if isinstance(task, SinkProcess) and task.restoring:
            self._start(target)
        else:
            self.channels[source, target].popleft()

    def _do_message(self, number: int) -> None:
        target, event, uid = self.messages.pop(number)
        self.tell(target, "receive", type(event).__name__, uid or -1)
        if target == "coordinator":
            # a zombie hears the same messages as the current coordinator
            for coordinator in self.coordinators:
                coordinator.take(self, event)
            return
        task = self.tasks[target]
        if isinstance(task, SinkProcess) and isinstance(event, b.EpochDecided | b.EpochAborted):
            task.take_sink(self, event)
        if task and isinstance(event, b.EpochAborted):
            task.take(self, event)

    def _do_timer(self, index: int, number: int) -> None:
        coordinator = self.coordinators[index]
        due, event = coordinator.timers.pop(number)
        self.now = max(self.now, due)
        self.tell("coordinator", "timer", type(event).__name__)
        coordinator.take(self, event)

    def _do_tick(self, now: int) -> None:
        """Set the time to `now` ms; timed runs only."""
        self.now = max(self.now, now)

    def _do_stop(self) -> None:
        assert self.coordinator is not None  # noqa: S101 - else the choice does not exist
        self.stopped = self.coordinator.life
        self.coordinator.take(self, b.StopRequested(b.Reason.DRAINED))

    def _do_takeover(self) -> None:
        """Begin a new incarnation, the fence first: from here on no older incarnation can commit."""
        self.durable.incarnation += 1
        self.needs_takeover = False
        if self.durable.incarnation > 1:
            self.tell("", "recover", f"{self.durable.incarnation} from {self.durable.base}")
        self.lives += 1
        coordinator = CoordinatorProcess(self, self.lives)
        self.coordinators.append(coordinator)
        coordinator.take(self, b.Started())

    def _do_usurp(self) -> None:
        """Take over without a failure: the old coordinator continues as a zombie."""
        self._do_takeover()

    def _do_restart(self, name: str) -> None:
        self._tell_restored(name)
        self._start(name)

    def _tell_restored(self, name: str) -> None:
        """Report a restore; the first incarnation restores nothing."""
        if self.durable.incarnation <= 1:
            return
        self.tell(name, "return", str(self.durable.base))
        self.tell(name, "restore", str(self.durable.base))

    def _start(self, name: str) -> None:
        self.lives += 1
        if name not in self.graph.sinks:
            self.tasks[name] = TaskProcess(self, name, self.lives)
            return
        sink = SinkProcess(self, name, self.lives)
        self.tasks[name] = sink
        sink.take_sink(self, b.Started())

    def _do_crash(self, name: str) -> None:
        self.tasks[name] = None
        self.needs_takeover = True
        self.count("crash")
        self.tell(name, "crash")

    def _do_crash_coordinator(self, index: int) -> None:
        # the death of a zombie needs no takeover
        self.needs_takeover |= self.coordinators[index] is self.coordinator
        self.count("crash")
        self.tell("coordinator", "crash")
        del self.coordinators[index]

    def _collect_ends(self) -> None:
        """Remove finished coordinators; restart each sink that learned of its successor."""
        for coordinator in [each for each in self.coordinators if each.finished]:
            if coordinator is self.coordinator and not self.drained(coordinator):
                self.needs_takeover = True
            if not self.drained(coordinator):
                self.coordinators.remove(coordinator)
        for name, task in self.tasks.items():
            if isinstance(task, SinkProcess) and task.participant.phase is b.SinkPhase.FENCED:
                self._tell_restored(name)
                self._start(name)

    def drained(self, coordinator: CoordinatorProcess) -> bool:
        """Return True if it ended a run with every epoch published."""
        end = coordinator.finished
        return end is not None and end.outcome is b.Outcome.STOPPED and not end.unpublished

    # -- stores ----------------------------------------------------------------------------------------------

    def _do_stored(self, number: int, how: str) -> None:
        kind, life, *what = self.stores.pop(number)
        self._tell_store(kind, life, how)
        getattr(self, "_store_" + kind)(life, how, *what)

    def _tell_store(self, kind: str, life: int, how: str) -> None:
        task = self._task_of_life(life)
        who = "coordinator" if kind == "decide" else task.name if task else ""
        self.tell(who, "stored" if how == "ok" else "failed", kind)

    def _task_of_life(self, life: int) -> TaskProcess | None:
        return next((task for task in self.tasks.values() if task and task.life == life), None)

    def _answer(self, life: int, event: Event) -> None:
        task = self._task_of_life(life)
        if task is not None:
            task.take(self, event)

    def _answer_sink(self, life: int, event: Event) -> None:
        task = self._task_of_life(life)
        if isinstance(task, SinkProcess):
            task.take_sink(self, event)

    def _store_snapshot(self, life: int, how: str, key: SnapshotKey, state: State) -> None:
        self.durable.snapshots[key] = state
        self._answer(life, b.SnapshotStored(Epoch(key[1]), Incarnation(key[2])))

    def _store_restore(self, life: int, how: str, name: str) -> None:
        task = self._task_of_life(life)
        if task is not None:
            task.state = self.durable.state(name)
            self._tell_restored(name)
            task.take(self, b.Restored(Epoch(self.durable.base), Incarnation(self.durable.incarnation)))

    def _store_decide(self, life: int, how: str, epoch: int, incarnation: int, acked: dict[str, int]) -> None:
        event: Event
        ids = Epoch(epoch), Incarnation(incarnation)
        if incarnation != self.durable.incarnation:
            event = b.EpochStoreFailed(*ids, why="the log has a newer incarnation")
        elif how == "fail":  # no answer: to the coordinator the commit may have happened
            return
        else:
            self.durable.decide(epoch, incarnation, acked)
            self.count("complete")
            self.tell("coordinator", "complete", str(epoch))
            event = b.EpochStored(*ids)
        for coordinator in [each for each in self.coordinators if each.life == life and how != "silent"]:
            coordinator.take(self, event)

    def _store_ask(self, life: int, how: str, sink: str, epoch: int, prepared_in: int) -> None:
        record = self.durable.decision(epoch)
        decided = record is not None and record.incarnation == prepared_in
        task = self._task_of_life(life)
        mine = task.machine.incarnation if task else Incarnation(0)
        self._answer_sink(life, b.DoubtResolved(Epoch(epoch), Incarnation(prepared_in), mine, decided))

    def _store_prepare(self, life: int, how: str, key: SnapshotKey, rows: tuple[Record, ...]) -> None:
        ids = Epoch(key[1]), Incarnation(key[2])
        if how == "fail":
            self._answer_sink(life, b.PrepareFailed(*ids, why="the staging area is full"))
            return
        self.durable.prepared[key] = rows
        self._answer_sink(life, b.Prepared(*ids))

    def _store_publish(self, life: int, how: str, sink: str, epoch: int) -> None:
        task = self._task_of_life(life)
        mine = task.machine.incarnation if task else Incarnation(0)
        if how != "fail":
            self.durable.publish(sink, epoch)
            self.tell(sink, "publish", f"epoch {epoch}")
        failed = b.PublishRefused(Epoch(epoch), mine, retriable=True, why="no answer")
        self._answer_sink(life, failed if how in ("fail", "silent") else b.Published(Epoch(epoch), mine))

    # -- the end ---------------------------------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """True if every source is in the newest incarnation and has read all its records."""
        sources = [self.tasks[name] for name in self.graph.sources]
        return all(
            task
            and task.machine.incarnation == self.durable.incarnation
            and task.state.cursor == self.graph.sources[task.name]
            and not task.restoring
            for task in sources
        )

    @property
    def finished(self) -> bool:
        """True if the newest coordinator ended a drained run."""
        return bool(self.coordinator and self.drained(self.coordinator))

    def calm(self) -> None:
        """End all faults."""
        self.faults_left = 0

    def drain_choices(self) -> list[Choice]:
        """Return work, else the earliest timer; a stop once the sources are exhausted; nothing after the end."""
        if self.finished:
            return []
        coordinator = self.coordinator
        if coordinator and coordinator.life != self.stopped and self.exhausted and not self.needs_takeover:
            return [("stop",)]
        return self.choices() or self.timers()[:1]

    def counts(self) -> dict[str, int]:
        """Return the number of crashes, takeovers, completed epochs and drops."""
        return dict(self.counted)

    def crash_of(self, process: str) -> Choice:
        """Return the crash of a process; of the coordinators, the newest one's, a zombie or not."""
        return ("crash coordinator", len(self.coordinators) - 1) if process == "coordinator" else ("crash", process)

    def machines(self) -> list[Machine[Any]]:
        """Return all living machines."""
        tasks = [task for task in self.tasks.values() if task]
        sinks = [task.participant for task in tasks if isinstance(task, SinkProcess)]
        return [*(each.machine for each in self.coordinators), *(task.machine for task in tasks), *sinks]

    def names(self) -> list[str]:
        """Return the graph's tasks and the coordinator."""
        return [*self.graph.tasks, "coordinator"]

    def shared(self) -> tuple[object, ...]:
        """Return the graph."""
        return (self.graph,)

    def picture(self) -> Hashable:
        """Return the state without histories, clocks and counts for reports."""
        return of_attributes(self, HISTORY)

    def judge(self) -> None:
        """Judge the end: O3, and O10 (no channel is held, no epoch is unpublished)."""
        self.durable.judge_effect()
        for task in self.tasks.values():
            ensure(task is not None and not task.machine.held, "O10", f"{task and task.name} still holds inputs")


FAILURES = {"decide": ("fail", "silent"), "prepare": ("fail",), "publish": ("fail", "silent")}
"""Failures of each store operation: `fail` is not performed, `silent` is performed without an answer."""

HISTORY = frozenset({"graph", "limits", "roles", "now", "moments", "step", "uid", "counted", "cells"})
FAULTY = ("crash", "crash coordinator", "usurp")
