"""Timed runs of the shipped barriers, with the latencies, failures and graphs of the other protocols.

Like the Spark runtime, the host stops all processes when it notices a failure, begins the next incarnation and starts
all processes again. All parts read one clock: barriers do not depend on the skew of clocks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

from checkpoint_lab.barrier_storage import BarrierGraph, Channel, Record
from checkpoint_lab.barrier_world import BarrierWorld
from checkpoint_lab.clockwork import LATENCIES, STATE_BYTES, Clockwork, Latencies, Measurement
from checkpoint_lab.durable import frame
from checkpoint_lab.stored_size import StoredSize
from checkpoint_lab.timed import TIMED
from checkpoint_lab.world import Choice
from checkpoint_protocols import barrier as b
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.machine import Event, ProtocolViolation

TIMEOUT_MS = 10_000


class MeteredWorld(BarrierWorld):
    """A barrier world that counts and numbers all messages and writes, so that each keeps its time."""

    def __init__(self, graph: BarrierGraph, limits: b.Limits) -> None:
        self.sent: Counter[str] = Counter()
        self.log_bytes = 0
        self.size = StoredSize()
        self.numbered = 0
        self.in_channels: dict[Channel, deque[int]] = {}
        self.in_messages: list[int] = []
        self.in_stores: list[int] = []
        super().__init__(graph, limits=limits)

    def notify(self, source: str, target: str, event: Event) -> None:
        """Send and count a control message."""
        super().notify(source, target, event)
        self.sent["control"] += 1
        self.in_messages.append(self._number())

    def send(self, source: str, target: str, kind: str, incarnation: int, body: Any) -> None:
        """Send and count rows or a barrier."""
        super().send(source, target, kind, incarnation, body)
        self.sent["rows" if kind == "rows" else "control"] += 1
        self.in_channels.setdefault((source, target), deque()).append(self._number())

    def offer_barrier(self, source: str, epoch: int, incarnation: int) -> None:
        """Offer and count the coordinator's barrier, which is a message too."""
        super().offer_barrier(source, epoch, incarnation)
        self.sent["control"] += 1
        self.in_channels.setdefault(("", source), deque()).append(self._number())

    def store(self, kind: str, life: int, *what: Any) -> None:
        """Begin and count a write, or a question to the store."""
        super().store(kind, life, *what)
        self.in_stores.append(self._number())
        if kind == "decide":
            epoch, incarnation, acked = what
            named = {"epoch": epoch, "incarnation": incarnation, "tasks": list(self.graph.tasks), "acked": acked}
            self.log_bytes += len(frame(named))
        elif kind == "snapshot":
            (task, epoch, incarnation), _ = what
            self.log_bytes += len(frame({"task": task, "epoch": epoch, "incarnation": incarnation}))
            self.size.states += task not in self.graph.sources
        elif kind == "prepare":
            _, rows = what
            self.size.staged_bytes += sum(len(">".join(map(str, row))) for row in rows)

    def do(self, choice: Choice) -> None:
        """Perform the choice and remove the number of its message or write."""
        if choice[0] == "message":
            self.in_messages.pop(int(choice[1] or 0))
        elif choice[0] == "stored":
            self.in_stores.pop(int(choice[1] or 0))
        super().do(choice)
        for channel, numbers in self.in_channels.items():
            while len(numbers) > len(self.channels[channel]):
                numbers.popleft()

    def _number(self) -> int:
        self.numbered += 1
        return self.numbered


class TimedBarrierRun(Clockwork[MeteredWorld]):
    """Drives a barrier world by the clock."""

    def __init__(
        self, world: MeteredWorld, seed: int, latencies: Latencies, crashes: Sequence[tuple[float, str]] = ()
    ) -> None:
        super().__init__(world, seed, latencies, world.limits.interval_ms, crashes)
        self.newest_arrival: dict[Channel, float] = {}
        self.seen = dict.fromkeys(world.graph.sinks, 0)

    @property
    def now(self) -> float:
        """The world's time, in ms."""
        return self.world.now

    def busy(self) -> bool:
        """Return True while there are inputs to read, rows on their way, or failures to come."""
        world = self.world
        rows = any(item[0] == "rows" for channel in world.channels.values() for item in channel)
        return bool(self.crashes or rows or not world.exhausted or self.recovering())

    def held(self) -> int:
        """Return the number of channels that wait at a barrier."""
        return sum(len(task.machine.held) for task in self.world.tasks.values() if task)

    def recovering(self) -> bool:
        """Return True while a process is down or has not loaded its state."""
        world = self.world
        return world.needs_takeover or any(task is None or task.restoring for task in world.tasks.values())

    def next_input(self, source: str) -> str:
        """Return the name of the input that a source reads next."""
        task = self.world.tasks[source]
        return f"{source}.{task.state.cursor if task else 0}"

    def newly_shown(self) -> Iterable[str]:
        """Yield the inputs of newly shown rows, by name."""
        for name in self.world.graph.sinks:
            shown = self.world.durable.published.get(name, [])
            epochs, self.seen[name] = shown[self.seen[name] :], len(shown)
            yield from (_input_of(row) for _, rows in epochs for row in rows)

    def when(self, choice: Choice) -> float:
        """Return the time of a choice: drawn once for each message, write, reading and start."""
        world, latencies, (kind, *what) = self.world, self.latencies, choice
        if kind == "receive":
            return self._arrivals((str(what[0]), str(what[1])))
        if kind == "message":
            return self._drawn(("message", world.in_messages[int(what[0] or 0)]), latencies.message_ms)
        if kind == "stored":
            return self._drawn(("stored", world.in_stores[int(what[0] or 0)]), latencies.store_ms)
        if kind == "emit":
            return self._drawn((*choice, self.reads), latencies.read_ms)
        return self._drawn((*choice, world.durable.incarnation), latencies.recovery_ms if world.lives else 0.0)

    def ring(self, choice: Choice) -> float:
        """Return the time of a timer."""
        _, index, number = choice
        return self.world.coordinators[int(index or 0)].timers[int(number or 0)][0]

    def record(self, choice: Choice) -> None:
        """Record a choice; a takeover first stops every process of the previous incarnation."""
        if choice[0] == "takeover":
            for name in [name for name, task in self.world.tasks.items() if task]:
                super().record(("crash", name))
            for index in reversed(range(len(self.world.coordinators))):
                super().record(("crash coordinator", index))
        super().record(choice)

    def _arrivals(self, channel: Channel) -> float:
        """Return the arrival of the first item of a channel; no item overtakes another."""
        for number in self.world.in_channels[channel]:
            if ("channel", number) not in self.due:
                arrival = self.now + self.draw(self.latencies.message_ms)
                newest = max(arrival, self.newest_arrival.get(channel, 0.0))
                self.due["channel", number] = self.newest_arrival[channel] = newest
        return self.due["channel", self.world.in_channels[channel][0]]

    def _drawn(self, key: tuple[object, ...], mean: float) -> float:
        if key not in self.due:
            self.due[key] = self.now + self.draw(mean)
        return self.due[key]


def measure_barrier(
    graph: Graph,
    seed: int,
    latencies: Latencies = LATENCIES,
    inputs: int = 20,
    interval_ms: int = TIMED.interval_ms,
    timeout_ms: int = TIMEOUT_MS,
    crashes: Sequence[tuple[float, str]] = (),
    state_bytes: int = STATE_BYTES,
) -> Measurement:
    """Measure and judge one timed run of the shipped machines.

    Raises a `Violation`, and a `ProtocolViolation` for a graph with loops.
    """
    limits = b.Limits(interval_ms, timeout_ms, timeout_ms, timeout_ms, retry_ms=50)
    world = MeteredWorld(with_sinks(graph, inputs), limits)
    run = TimedBarrierRun(world, seed, latencies, crashes)
    run.run()
    world.judge()
    cursors = sum(world.durable.state(name).cursor for name in world.graph.sources)
    control = {"protocol messages": world.sent["control"], "bytes written": world.log_bytes}
    counts = {**world.counts(), **control, "messages": world.sent["rows"]}
    return Measurement(
        "barrier",
        seed,
        world.now,
        counts,
        (),
        tuple(run.recoveries),
        run.reads - cursors,
        run.held_ms,
        tuple(run.shown_ms),
        world.size.bytes(state_bytes),
        tuple(run.trace),
    )


def with_sinks(graph: Graph, inputs: int) -> BarrierGraph:
    """Return the graph for barriers, every source with `inputs` rows. Raises `ProtocolViolation` if it has loops."""
    if graph.back_edges:
        raise ProtocolViolation(f"barrier needs an acyclic graph, {graph.name} has {sorted(graph.back_edges)}")
    edges = tuple((str(source), str(target)) for source, target in graph.edges)
    return BarrierGraph(
        graph.name, {str(source): inputs for source in graph.sources}, edges, tuple(map(str, graph.sinks))
    )


def _input_of(row: Record) -> str:
    return f"{row[-2]}.{row[-1]}"
