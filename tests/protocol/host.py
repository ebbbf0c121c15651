"""A deterministic, single-threaded host: FIFO channels, delayed stores, timers, crashes, zombies, one choice
a step.

A world is a value: `choices()` lists what can happen next, `do(choice)` makes it happen, and a list of
choices is a trace.  Nothing is random here; `schedules` draws from a seed, `test_exhaustive` tries
everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from spark_ckpt.protocol import barrier as b
from spark_ckpt.protocol.ids import ChannelId, Epoch, Incarnation
from spark_ckpt.protocol.machine import Event
from tests.protocol.durable import Channel, Durable, Graph, Record, SnapshotKey, State, ensure
from tests.protocol.processes import CoordinatorProcess, SinkProcess, TaskProcess

Roles = Mapping[str, Any]
Choice = tuple[Any, ...]

ROLES: Roles = {"coordinator": b.Coordinator, "operator": b.Operator, "sink": b.SinkParticipant}


class World:
    """Everything there is. `newest_marker_only`: a source sees the newest of the barriers it has not seen."""

    def __init__(self, graph: Graph, roles: Roles = ROLES, newest_marker_only: bool = False) -> None:
        self.graph = graph
        self.roles = {**ROLES, **roles}
        self.newest_marker_only = newest_marker_only
        self.durable = Durable(graph)
        self.now = 0
        self.segments: list[Record] = []
        self.channels: dict[Channel, deque[tuple[Any, ...]]] = {edge: deque() for edge in graph.edges}
        self.channels.update({("", source): deque() for source in graph.sources})
        self.messages: list[tuple[str, Event]] = []
        self.stores: list[tuple[Any, ...]] = []
        self.tasks: dict[str, TaskProcess | None] = dict.fromkeys(graph.tasks)
        self.coordinators: list[CoordinatorProcess] = []
        self.lives = 0
        self.needs_takeover = True

    # -- what processes ask for ------------------------------------------------------------------------------

    def tell(self, target: str, event: Event) -> None:
        """Control messages are reliable while the target lives, and not ordered."""
        self.messages.append((target, event))

    def store(self, kind: str, life: int, *what: Any) -> None:
        self.stores.append((kind, life, *what))

    def send(self, source: str, target: str, item: tuple[Any, ...]) -> None:
        self.channels[source, target].append(item)

    def offer_barrier(self, source: str, epoch: int, incarnation: int) -> None:
        channel = self.channels["", source]
        if self.newest_marker_only:
            kept = [item for item in channel if item[1] != incarnation]
            channel.clear()
            channel.extend(kept)
        channel.append(("barrier", incarnation, epoch))

    # -- what can happen -------------------------------------------------------------------------------------

    @property
    def coordinator(self) -> CoordinatorProcess | None:
        """The newest incarnation's, if it lives."""
        newest = self.coordinators[-1] if self.coordinators else None
        current = newest is not None and newest.machine.incarnation == self.durable.incarnation
        return newest if current else None

    def choices(self) -> list[Choice]:
        """Everything but faults and timers."""
        return [
            *(("emit", name) for name, task in self.tasks.items() if task and self._can_emit(task)),
            *(("receive", *channel) for channel in self.channels if self._can_receive(*channel)),
            *(("message", number) for number in range(len(self.messages))),
            *(("stored", number, "ok") for number in range(len(self.stores))),
            *((("takeover",),) if self.needs_takeover else ()),
            *(("restart", name) for name, task in self.tasks.items() if task is None and not self.needs_takeover),
        ]

    def timers(self) -> list[Choice]:
        return [
            ("timer", index, number)
            for index, coordinator in enumerate(self.coordinators)
            for number in range(len(coordinator.timers))
        ]

    def faults(self) -> list[Choice]:
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
        free = task is not None and not task.restoring and source not in task.machine.held
        return free and bool(self.channels[source, target])

    # -- making it happen ------------------------------------------------------------------------------------

    def do(self, choice: Choice) -> None:
        kind, *what = choice
        getattr(self, "_do_" + kind.replace(" ", "_"))(*what)
        self._collect_ends()

    def _do_emit(self, name: str) -> None:
        task = self.tasks[name]
        assert task is not None
        task.emit(self)

    def _do_receive(self, source: str, target: str) -> None:
        task = self.tasks[target]
        assert task is not None
        kind, incarnation, body = self.channels[source, target][0]
        event: Event
        if kind == "barrier":
            event = b.BarrierArrived(ChannelId(source), Epoch(body), Incarnation(incarnation))
        else:
            self.segments.append(body)
            event = b.RowsArrived(ChannelId(source), Incarnation(incarnation), len(self.segments) - 1)
        task.take(self, event)
        if isinstance(task, SinkProcess) and task.restoring:
            self._start(target)
        else:
            self.channels[source, target].popleft()

    def _do_message(self, number: int) -> None:
        target, event = self.messages.pop(number)
        if target == "coordinator":
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
        coordinator.take(self, event)

    def _do_stop(self) -> None:
        assert self.coordinator is not None
        self.coordinator.take(self, b.StopRequested(b.Reason.DRAINED))

    def _do_takeover(self) -> None:
        """The fence first: from here on no older incarnation can decide anything."""
        self.durable.incarnation += 1
        self.needs_takeover = False
        self.lives += 1
        coordinator = CoordinatorProcess(self, self.lives)
        self.coordinators.append(coordinator)
        coordinator.take(self, b.Started())

    def _do_usurp(self) -> None:
        """Somebody takes over although nothing failed: the old life goes on as a zombie."""
        self._do_takeover()

    def _do_restart(self, name: str) -> None:
        self._start(name)

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

    def _do_crash_coordinator(self, index: int) -> None:
        self.needs_takeover |= self.coordinators[index] is self.coordinator
        del self.coordinators[index]

    def _collect_ends(self) -> None:
        """A coordinator that finished is gone; a sink that learned of its successor starts anew as that."""
        for coordinator in [each for each in self.coordinators if each.finished]:
            if coordinator is self.coordinator and not self.drained(coordinator):
                self.needs_takeover = True
            if not self.drained(coordinator):
                self.coordinators.remove(coordinator)
        for name, task in self.tasks.items():
            if isinstance(task, SinkProcess) and task.participant.phase is b.SinkPhase.FENCED:
                self._start(name)

    def drained(self, coordinator: CoordinatorProcess) -> bool:
        """It ended a run to whose end nothing is missing."""
        end = coordinator.finished
        return end is not None and end.outcome is b.Outcome.STOPPED and not end.unpublished

    # -- stores ----------------------------------------------------------------------------------------------

    def _do_stored(self, number: int, how: str) -> None:
        kind, life, *what = self.stores.pop(number)
        getattr(self, "_store_" + kind)(life, how, *what)

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
            task.take(self, b.Restored(Epoch(self.durable.base), Incarnation(self.durable.incarnation)))

    def _store_decide(self, life: int, how: str, epoch: int, incarnation: int, acked: dict[str, int]) -> None:
        event: Event
        ids = Epoch(epoch), Incarnation(incarnation)
        if incarnation != self.durable.incarnation:
            event = b.EpochStoreFailed(*ids, fenced=True, why="the log has a newer incarnation")
        elif how == "fail":
            event = b.EpochStoreFailed(*ids, why="the store is full")
        else:
            self.durable.decide(epoch, incarnation, acked)
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
        failed = b.PublishRefused(Epoch(epoch), mine, retriable=True, why="no answer")
        self._answer_sink(life, failed if how in ("fail", "silent") else b.Published(Epoch(epoch), mine))

    # -- the end ---------------------------------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """Every source is in the newest incarnation and has read all it has."""
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
        """The newest coordinator ended a drained run."""
        return bool(self.coordinator and self.drained(self.coordinator))

    def judge_end(self) -> None:
        """O3, O10 (nothing is held, nothing is owed)."""
        self.durable.judge_effect()
        for task in self.tasks.values():
            ensure(task is not None and not task.machine.held, "O10", f"{task and task.name} still holds inputs")


FAILURES = {"decide": ("fail", "silent"), "prepare": ("fail",), "publish": ("fail", "silent")}
"""How a store operation can fail: not done and said so, or done without an answer."""
