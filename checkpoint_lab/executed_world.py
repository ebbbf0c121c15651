"""The micro-batch world with real rows: the machines and the host are the same, an `Executor` runs the operators.

- A message is a segment, and its body is the segment's name and the digest of its rows. An edge keeps every segment.
- A batch runs at its end, or before a capture in the middle of it. The marker of a capture follows the rows delivered so
  far in the same micro-batch.
- A checkpoint record and the operator's snapshot are one commit. The next incarnation reads both back.
- A crash ends the operator. The recovery's plan decides who else goes back: these operators begin again, too.

At the end three judges follow those of the message world. They read the rows that the sinks show, and replay the
machines: each incarnation's events, handed to a fresh machine, have to give the same effects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from checkpoint_lab.batches_world import BatchesWorld
from checkpoint_lab.durable import Storage, Write
from checkpoint_lab.executor import KEYS, Executor, Row, Saved, Snapshot, digest_of
from checkpoint_lab.faults import Faults
from checkpoint_lab.message_world import DEFAULT
from checkpoint_lab.process import GraphApplication, Process, SinkPublication, application
from checkpoint_lab.schedules import ScheduleOutcome
from checkpoint_lab.scripted import DRIVERS, LEASE, PROGRAMS, WORLDS, NotOnTheMenu, Scenario
from checkpoint_lab.violations import ShownOutOfOrder, ShownTwice, WrongEffect, WrongOutput
from checkpoint_protocols.graph import COORDINATOR, Graph
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.message_machine import AnyMessageMachine
from checkpoint_protocols.recovery import Birth, Key, Part, Protocol, ProtocolSettings, Record
from checkpoint_protocols.vocabulary import CaptureState, SinkTransaction

STEPS = 30
"""Steps of the random phase, on average: each batch costs a micro-batch of Spark."""

NO_MACHINES = {
    DRIVERS: "it decides which driver runs a job, and moves no rows",
    LEASE: "it decides which replica takes a checkpoint, and moves no rows",
    PROGRAMS: "jobs have it: start them with protocol='index'",
}
"""Protocols without a machine for messages, and the reason; those that are left are the rules of jobs and outboxes."""


class SavedStorage(Storage):
    """Durable storage of a process whose records an executor writes. Memory holds a copy, which a crash drops."""

    def __init__(self, executor: Executor, name: ProcessId) -> None:
        super().__init__()
        self.executor = executor
        self.name = name

    def write(self, write: Write) -> None:
        """Write the record, and a checkpoint's snapshot with it."""
        self.executor.save(self.name, write.key, Saved(write.framed, write.cut.snapshot if write.cut else None))
        super().write(write)

    def erase(self, keys: tuple[Key, ...]) -> None:
        """Erase records."""
        self.executor.erase(self.name, keys)
        super().erase(keys)

    def discard(self, keys: Iterable[Key]) -> None:
        """Drop records of an undone future."""
        dropped = list(keys)
        self.executor.erase(self.name, dropped)
        super().discard(dropped)

    def reopen(self) -> None:
        """Read all records back."""
        self._changed()
        self.framed = {key: saved.framed for key, saved in self.executor.load(self.name).items()}


@dataclass
class Life:
    """One incarnation of a machine: its begin, its events and its effects."""

    make: Callable[[Birth], AnyMessageMachine]
    birth: Birth
    steps: list[tuple[Event, list[Effect]]] = field(default_factory=list)

    def begin(self) -> AnyMessageMachine:
        """Return the machine; it records its events here."""
        machine = self.make(self.birth)
        handle = machine.handle

        def recorded(event: Event) -> list[Effect]:
            effects = handle(event)
            self.steps.append((event, list(effects)))
            return effects

        # on the instance: the class is the protocol's own, and `judge` runs it without a recorder
        vars(machine)["handle"] = recorded
        return machine

    def judge(self) -> None:
        """Hand every event to a fresh machine. Raises `WrongEffect` if an effect differs."""
        machine = self.make(self.birth)
        for number, (event, effects) in enumerate(self.steps):
            again = machine.handle(event)
            if again != effects:
                what = (
                    f"event {number} of incarnation {self.birth.incarnation} is {event}: {effects}, and again {again}"
                )
                raise WrongEffect(what, [self.birth.me])


def recorded(protocol: Protocol, lives: list[Life]) -> Protocol:
    """Return the protocol with machines that record their events in `lives`."""

    def wrap(make: Callable[[Birth], AnyMessageMachine]) -> Callable[[Birth], AnyMessageMachine]:
        def begin(birth: Birth) -> AnyMessageMachine:
            lives.append(Life(make, birth))
            return lives[-1].begin()

        return begin

    coordinator = wrap(protocol.coordinator) if protocol.coordinator else None
    return replace(protocol, worker=wrap(protocol.worker), coordinator=coordinator)


def input_rows(segment: str) -> list[Row]:
    """Return the rows of a source's input: one of each key."""
    return [Row(key, f"{segment}.{key}", 0, 0, 0) for key in KEYS]


def possible(faults: Faults) -> Faults:
    """Return the faults that an executor can carry out: an incarnation that is replaced ends, a commit is whole."""
    return replace(faults, torn=0, late=0, damages=0, suspicions=0)


class ExecutedWorld(BatchesWorld):
    """One job under one protocol, whose rows an executor computes."""

    def __init__(
        self,
        executor: Executor,
        protocol: Protocol,
        graph: Graph,
        faults: Faults,
        inputs: int = 3,
        settings: ProtocolSettings = DEFAULT,
    ) -> None:
        self.executor = executor
        self.lives: list[Life] = []
        self.waiting: dict[ProcessId, list[str]] = {name: [] for name in graph.processes}
        """Segments that are delivered and not run yet."""
        self.results: dict[ProcessId, list[str]] = {name: [] for name in graph.sinks}
        """Names of the output segments of each sink, one per delivered message."""
        self.captured: dict[ProcessId, Snapshot] = {}
        """Snapshots of operators that have taken nothing in since."""
        self.batches_run = 0
        for name in graph.processes:
            executor.begin(name, ())
        for source in graph.sources:
            for number in range(inputs):
                executor.write(f"{source}.{number}", input_rows(f"{source}.{number}"))
        # last, because it begins the machines, whose effects need the fields and inputs above
        super().__init__(recorded(protocol, self.lives), graph, possible(faults), inputs, settings=settings)

    def workload(self, graph: Graph, inputs: int, loops: int, ordered: bool) -> GraphApplication:
        """Return the application. A body always ends with a digest."""
        return application(graph, inputs, loops, ordered=True)

    def storage_of(self, name: ProcessId) -> Storage:
        """Return a storage whose records the executor writes."""
        return SavedStorage(self.executor, name)

    # -- batches ---------------------------------------------------------------------------------------------------

    def pass_on(self, process: Process, body: str) -> None:
        """Put the segment into the process's next micro-batch."""
        self.waiting[process.name].append(body)

    def hand(self, process: Process, event: Event) -> None:
        """Hand one event to the machine; segments that it delivers between two batches are a batch of their own."""
        super().hand(process, event)
        if self.waiting.get(process.name) and process.name != self.open:
            self.hand_out(process)

    def hand_out(self, process: Process) -> None:
        """Run what is delivered, then send the results, unless the batch is under way."""
        if process.name != self.open:
            self.run_batch(process)
        super().hand_out(process)

    def end_batch(self, process: Process) -> None:
        """Run the batch, then send the results."""
        self.hand_out(process)

    def run_batch(self, process: Process, marked: bool = False) -> None:
        """Run the delivered segments in one micro-batch, with a marker after them if the state is captured."""
        name = process.name
        taken, self.waiting[name] = self.waiting.get(name, []), []
        # Nothing was taken in since the newest capture, so its snapshot is still the operator's state.
        if not taken and (not marked or name in self.captured):
            return
        batch = self.executor.run(name, taken, marked)
        self.batches_run += 1
        for body, rows in zip(taken, batch.outputs, strict=True):
            self._emit(process, body, rows)
        self.captured.pop(name, None)
        if marked:
            self.captured[name] = Snapshot(batch.keys, tuple(self.results.get(name, ())))

    def _emit(self, process: Process, body: str, rows: Sequence[Row]) -> None:
        lineage, digest = self.app.lineage(body), digest_of(rows)
        for channel, child in self.app.routes[lineage]:
            segment = f"{child}#{digest}"
            self.executor.write(segment, rows)
            process.state.outbox.append((channel, segment))
        if process.name in self.results:
            self.executor.write(f"{lineage}!{digest}", rows)
            self.results[process.name].append(f"{lineage}!{digest}")

    def _carry_out(self, process: Process, effect: Effect) -> None:
        shows = isinstance(effect, SinkTransaction)
        # The rows that were delivered before the capture belong to it, so they run first, in the micro-batch that ends with its
        # marker.
        if isinstance(effect, CaptureState) and process.name in self.graph.processes:
            self.run_batch(process, marked=True)
            process.state.snapshot = self.captured[process.name]
        # rows to be shown may still wait for the end of the batch
        elif shows and process.name in self.results:
            self.run_batch(process)
        super()._carry_out(process, effect)
        if shows and process.name in self.results:
            publication = process.publishing[-1]
            results = self.results[process.name][publication.first : publication.last]
            process.publishing[-1] = publication._replace(results=tuple(results))

    def show(self, process: Process, publication: SinkPublication) -> None:
        """Append the rows to the sink's table, after the judgement of the message world."""
        super().show(process, publication)
        if publication.rows:
            rows = [row for name in publication.results for row in self.executor.read(name)]
            self.executor.show(process.name, rows)

    # -- failures --------------------------------------------------------------------------------------------------

    def crash(self, process: Process) -> None:
        """Kill a process and its operator."""
        super().crash(process)
        if process.name in self.graph.processes:
            self._forget(process.name)
            self.executor.kill(process.name)

    def recover(self) -> None:
        """Decide a recovery from the records that the failed processes have in their tables."""
        for process in self.everybody:
            if process.machine is None and isinstance(process.storage, SavedStorage):
                process.storage.reopen()
        super().recover()

    def _go_back(self, process: Process, part: Part, now: Record | None) -> Record | None:
        record = super()._go_back(process, part, now)
        if process.name in self.graph.processes and (now is None or part.checkpoint or part.initial):
            # a survivor that keeps its state keeps its operator, too
            saved = self.executor.load(process.name)[part.checkpoint].snapshot if part.checkpoint else None
            snapshot = saved or Snapshot()
            self._forget(process.name)
            self.executor.begin(process.name, snapshot.keys)
            if process.name in self.results:
                self.results[process.name] = list(snapshot.results)
        return record

    def _forget(self, name: ProcessId) -> None:
        self.waiting[name] = []
        self.captured.pop(name, None)

    # -- judging ---------------------------------------------------------------------------------------------------

    def judge_rounds(self) -> None:
        """Judge as the message world, then the rows of each sink, then the machines."""
        super().judge_rounds()
        for sink in self.sinks:
            judge_rows(self.app, sink, self.executor.shown(sink))
        for life in self.lives:
            life.judge()

    def counts(self) -> dict[str, int]:
        """Return the counts of the message world and the number of micro-batches."""
        replayed = sum(len(life.steps) for life in self.lives)
        return {**super().counts(), "micro-batches": self.batches_run, "events replayed": replayed}


def judge_rows(app: GraphApplication, sink: ProcessId, rows: Sequence[Row]) -> None:
    """O14, O15, O16 of rows: those of a run without failures, and per key numbered without gap or repetition."""
    lineages = app.names(app.expected[sink])
    expected = Counter((key, f"{lineage.partition('>')[0]}.{key}") for lineage in lineages for key in KEYS)
    there = Counter((row.key, row.item) for row in rows)
    if twice := sorted(there - expected):
        raise ShownTwice(f"the table of {sink} has too many of {twice}", [sink], [item for _, item in twice])
    if gone := sorted(expected - there):
        raise WrongOutput(f"the table of {sink} lacks {gone}", [sink], [item for _, item in gone])
    for key in KEYS:
        numbers = [row.number for row in rows if row.key == key]
        if numbers != list(range(1, len(numbers) + 1)):
            raise ShownOutOfOrder(f"the table of {sink} numbers the rows of {key} {numbers}", [sink])
    for key in KEYS:
        _judge_senders(app, sink, key, Counter(row.sent for row in rows if row.key == key))


def _judge_senders(app: GraphApplication, sink: ProcessId, key: str, sent: Counter[int]) -> None:
    """Every sender numbers its rows of a key from 1 on, so the sink has each number once per sender that got so far."""
    senders = Counter(_sender_of(lineage) for lineage in app.names(app.expected[sink]))
    expected = Counter(number for count in senders.values() for number in range(1, count + 1))
    if sent != expected:
        what = f"the senders of {sink} number the rows of {key} {sorted(sent.elements())}, not {sorted(expected.elements())}"
        raise WrongOutput(what, [sink])


def _sender_of(lineage: str) -> str:
    return lineage.split(">")[-2].partition(".")[0]


@dataclass(frozen=True)
class Prepared:
    """A checked scenario of a protocol with a message machine."""

    scenario: Scenario
    protocol: Protocol
    graph: Graph
    settings: ProtocolSettings

    def run(self, executor: Executor) -> ScheduleOutcome:
        """Run the scenario with the executor's rows. Raises `NotOnTheMenu` for a crash of an unknown process."""
        faults, inputs = self.scenario.budget(), self.scenario.inputs
        return self.scenario.run(ExecutedWorld(executor, self.protocol, self.graph, faults, inputs, self.settings))


def prepared(scenario: Scenario) -> Prepared:
    """Check a scenario before a session starts. Raises `NotOnTheMenu` for a protocol without a message machine."""
    if scenario.protocol in WORLDS:
        why = NO_MACHINES.get(scenario.protocol, "it is the rules of jobs and outboxes, which run on Spark as they are")
        raise NotOnTheMenu(f"{scenario.protocol} has no machine for messages: {why}", tuple(MENU))
    graph, settings = scenario.shape(), scenario.settings()
    scenario.refuse_unknown_crashes([*graph.processes, COORDINATOR])
    steps = STEPS if scenario.steps is None else scenario.steps
    return Prepared(replace(scenario, steps=steps), MENU[scenario.protocol], graph, settings)
