"""Runs in time: everything takes as long as a seeded draw says, timers run by each process's own clock.

The world stays as it is: this is one more way of choosing, which takes what is due first.  The trace says what time
it was (`tick`), so it replays like any other.  For measurements: rates of orphans and losses against the skew of
clocks, costs of protocols side by side.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from spark_ckpt.protocol.graph import Graph
from spark_ckpt.protocol.ids import ChannelId, ProcessId
from spark_ckpt.protocol.message_machine import APP
from spark_ckpt.protocol.recovery import Protocol, Settings
from spark_ckpt.simulator.faults import Clock, Clocks, Faults
from spark_ckpt.simulator.job_recovery import Audit
from spark_ckpt.simulator.message_world import MessageWorld
from spark_ckpt.simulator.violations import NoEnd
from spark_ckpt.simulator.world import Choice, Moment

STEPS_MAX = 50_000
ROUNDS_MAX = 20


@dataclass(frozen=True, slots=True)
class Latencies:
    """Means of exponential draws, in ms."""

    message_ms: float = 10.0
    store_ms: float = 20.0
    read_ms: float = 20.0
    """From one input of a source to the next."""
    recovery_ms: float = 50.0
    """Until a failure is noticed, and then for each process to do its part."""


LATENCIES = Latencies()
TIMED = Settings(interval_ms=200)
"""A checkpoint every ten inputs or so."""


@dataclass(frozen=True)
class Measurement:
    """One timed run. `recovery_ms`: from each crash until everybody had done its part."""

    protocol: str
    seed: int
    duration_ms: float
    counts: Mapping[str, int]
    audits: tuple[Audit, ...]
    recovery_ms: tuple[float, ...]
    reread: int
    """Inputs read again because of recoveries."""
    held_ms: float
    """Time that channels were held back, summed over channels: what the protocol made the application wait."""
    trace: tuple[Choice, ...]
    moments: tuple[Moment, ...] = ()


class TimedRun:
    """Drives a message world by the clock. `crashes`: (ms, process) pairs, in order."""

    def __init__(
        self, world: MessageWorld, seed: int, latencies: Latencies, crashes: Sequence[tuple[float, str]] = ()
    ) -> None:
        self.world = world
        self.latencies = latencies
        self.random = random.Random(seed)  # noqa: S311 - not for secrets
        self.due: dict[Hashable, float] = {}
        self.newest_arrival: dict[ChannelId, float] = {}
        self.crashes = list(crashes)
        self.trace: list[Choice] = []
        self.reads = 0
        self.down_since = 0.0
        self.recoveries: list[float] = []
        self.held_ms = 0.0

    def run(self, rounds: float = 2.0) -> None:
        """Until the application is done, then `rounds` intervals longer, then whatever is left. Raises `NoEnd`."""
        quiet_since: float | None = None
        for _ in range(STEPS_MAX):
            busy = self._busy()
            quiet_since = None if busy else (self.world.now if quiet_since is None else quiet_since)
            over = quiet_since is not None and self.world.now > quiet_since + rounds * self.world.settings.interval_ms
            if over or not self._step():
                return self._settle()
        raise NoEnd(f"no end after {STEPS_MAX} timed steps")

    def show_the_rest(self) -> None:
        """Checkpoints go on until everything is shown."""
        for _ in range(ROUNDS_MAX):
            if not self.world.owes():
                return
            for choice in self.world.periodic():
                self._record(choice)
            self._settle()

    def _busy(self) -> bool:
        """There are inputs to read, rows on their way, or failures."""
        world = self.world
        return bool(
            self.crashes
            or world.recovering
            or world.alarm
            or any(each.is_source and each.state.cursor < world.app.inputs for each in world.everybody)
            or any(item.message.kind == APP for queue in world.network.queues.values() for item in queue)
        )

    def _settle(self) -> None:
        for _ in range(STEPS_MAX):
            choices = self.world.drain_choices()
            if not choices:
                return
            self._record(choices[0])
        raise NoEnd(f"no end after {STEPS_MAX} calm steps")

    def _step(self) -> bool:
        """The next thing that is due, if there is anything."""
        self._note_arrivals()
        candidates = [(self._when(choice), choice) for choice in self.world.choices()]
        candidates += [(self._ring(choice), choice) for choice in self.world.timers()]
        if self.crashes:
            when, name = self.crashes[0]
            candidates.append((when, ("crash", name)))
        if not candidates:
            return False
        when, choice = min(candidates, key=lambda each: each[0])
        self._do(max(when, self.world.now), choice)
        return True

    def _do(self, when: float, choice: Choice) -> None:
        now = int(when)
        if now > self.world.now:
            held = sum(len(process.held) for process in self.world.everybody)
            self.held_ms += held * (now - self.world.now)
            self._record(("tick", now))
        if choice[0] == "crash":
            self.crashes.pop(0)
            self.down_since = self.world.now
        self.reads += choice[0] == "read"
        recovering = self.world.recovering
        self._record(choice)
        if recovering and not self.world.recovering:
            self.recoveries.append(self.world.now - self.down_since)

    def _record(self, choice: Choice) -> None:
        self.trace.append(choice)
        self.world.do(choice)

    def _draw(self, mean: float) -> float:
        return self.random.expovariate(1 / mean) if mean else 0.0

    def _note_arrivals(self) -> None:
        """When a message arrives is drawn when it is sent; on a FIFO channel none overtakes."""
        network = self.world.network
        for queues, fifo in ((network.queues, network.fifo), (network.controls, False)):
            for channel, queue in queues.items():
                for item in queue:
                    if item.uid not in self.due:
                        arrival = self.world.now + self._draw(self.latencies.message_ms)
                        floor = self.newest_arrival.get(channel, 0.0) if fifo else 0.0
                        self.due[item.uid] = self.newest_arrival[channel] = max(arrival, floor)

    def _when(self, choice: Choice) -> float:
        world, latencies = self.world, self.latencies
        kind, *what = choice
        if kind == "deliver":
            return self.due[world.network.peek(ChannelId(str(what[0])), int(what[1] or 0)).uid]
        if kind == "replay":
            return world.now
        name = str(what[0]) if what else ""
        mean = {"stored": latencies.store_ms, "publish": latencies.store_ms, "read": latencies.read_ms}
        key = (kind, name, world.incarnation, self._which(str(kind), name, what))
        if key not in self.due:
            self.due[key] = world.now + self._draw(mean.get(str(kind), latencies.recovery_ms))
        return self.due[key]

    def _which(self, kind: str, name: str, what: Sequence[object]) -> Hashable:
        if kind == "read":
            return self.reads
        if kind == "stored":
            write = self.world.processes[ProcessId(name)].writes[int(str(what[1]))]
            return (write.key, write.token, write.framed)
        if kind == "publish":
            sink = self.world.sinks.get(ProcessId(name))
            return len(sink.rows) if sink else 0
        return what[1] if len(what) > 1 else 0

    def _ring(self, choice: Choice) -> float:
        _, name, number = choice
        return self.world.processes[ProcessId(str(name))].timers[int(number or 0)].due


def measure(
    protocol: Protocol,
    graph: Graph,
    seed: int,
    latencies: Latencies = Latencies(),
    skew_ms: float = 0.0,
    inputs: int = 20,
    settings: Settings = TIMED,
    crashes: Sequence[tuple[float, str]] = (),
    story: bool = False,
) -> Measurement:
    """One timed run. Clocks are off by up to `skew_ms` either way; complete lines are audited if it is unsound."""
    world = MessageWorld(
        protocol, graph, Faults(crashes=len(crashes)), inputs, settings=settings, clocks=skewed(graph, seed, skew_ms)
    )
    if story:
        world.watch()
    world.audits = None if protocol.sound else []
    run = TimedRun(world, seed, latencies, crashes)
    run.run()
    if protocol.sound:
        world.calm()
        run.show_the_rest()
        world.judge()
        world.judge_output()
    reread = run.reads - sum(process.state.cursor for process in world.everybody)
    return Measurement(
        protocol.name,
        seed,
        world.now,
        world.counts(),
        tuple(world.audits or ()),
        tuple(run.recoveries),
        reread,
        run.held_ms,
        tuple(run.trace),
        tuple(world.moments or ()),
    )


def skewed(graph: Graph, seed: int, skew_ms: float) -> Clocks:
    """A clock per process, each off by a draw from [-skew_ms, skew_ms], and never before 0."""
    draws = random.Random(f"clocks {seed}")  # noqa: S311 - not for secrets
    offsets = {name: int(skew_ms + draws.uniform(-skew_ms, skew_ms)) for name in graph.processes}
    return Clocks({name: Clock(1.0, offset) for name, offset in offsets.items()})
