"""Timed runs of protocols over plain messages: a seeded draw gives every step its duration, the earliest comes first.

Timers run by each process's own clock. The runs measure rates of orphans and losses against the skew of clocks, and
compare the costs of protocols. The world is unchanged: this is another way of choosing. The trace contains the time
(`tick`), so it replays like any other.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from checkpoint_lab.faults import Clocks, Faults, LinearClock
from checkpoint_lab.job import StoredSize
from checkpoint_lab.job_recovery import Audit
from checkpoint_lab.message_world import MessageWorld
from checkpoint_lab.violations import NoEnd, Violation
from checkpoint_lab.world import Choice, Moment
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import ChannelId, ProcessId
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Protocol, ProtocolSettings

QUIET_INTERVALS = 2
"""Intervals from the end of the application's work to the end of the run."""

STEPS_MAX = 50_000

TIMED = ProtocolSettings(interval_ms=200)
"""Settings with a checkpoint about every ten inputs."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Means of exponential draws, in ms."""

    message_ms: float = 10.0
    store_ms: float = 20.0
    read_ms: float = 20.0
    """Time from one input of a source to the next."""
    recovery_ms: float = 50.0
    """Time until a failure is noticed, then until each process has done its part."""


LATENCIES = Latencies()


@dataclass(frozen=True)
class Measurement:
    """One timed run. `recovery_ms`: time from each crash until every process had done its part."""

    protocol: str
    seed: int
    duration_ms: float
    counts: Mapping[str, int]
    audits: tuple[Audit, ...]
    recovery_ms: tuple[float, ...]
    reread: int
    """Number of inputs that recoveries read again."""
    held_ms: float
    """Time that channels were held back, summed over channels: the application's wait for the protocol."""
    shown_ms: tuple[float, ...]
    """Time of each row at a sink, in order: from the first reading of its input until the sink showed it."""
    size: StoredSize
    trace: tuple[Choice, ...]
    moments: tuple[Moment, ...] = ()
    condemned: str = ""
    """Complaint that ended the run of an unsound protocol early."""


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
        self.down_since: list[float] = []
        self.recoveries: list[float] = []
        self.held_ms = 0.0
        self.first_read: dict[str, float] = {}
        self.shown_ms: list[float] = []
        self.seen = dict.fromkeys(world.sinks, 0)

    def run(self) -> None:
        """Run until the application is done, a few intervals longer, until all is shown and at rest. Raises `NoEnd`."""
        quiet_since: float | None = None
        for _ in range(STEPS_MAX):
            quiet_since = None if self.busy() else (self.now if quiet_since is None else quiet_since)
            end = None if quiet_since is None else quiet_since + QUIET_INTERVALS * self.world.settings.interval_ms
            # An index by the clock is complete when the last clock has come to it. A counter-example may never show its rows.
            over = end is not None and self.now > end and not (self.world.protocol.sound and self.world.owes())
            if over or not self._step():
                return self.settle()
        raise NoEnd(f"no end after {STEPS_MAX} timed steps")

    def settle(self) -> None:
        """Perform calm steps until nothing is left to happen."""
        for _ in range(STEPS_MAX):
            choices = self.world.drain_choices()
            if not choices:
                return
            self.record(choices[0])
        raise NoEnd(f"no end after {STEPS_MAX} calm steps")

    def record(self, choice: Choice) -> None:
        """Record and perform a choice."""
        self.trace.append(choice)
        self.world.do(choice)

    def draw(self, mean: float) -> float:
        """Draw a duration, in ms."""
        return self.random.expovariate(1 / mean) if mean else 0.0

    @property
    def now(self) -> float:
        """The world's time, in ms."""
        return self.world.now

    def busy(self) -> bool:
        """Return True while there are inputs to read, rows on their way, or failures to come."""
        world = self.world
        return bool(
            self.crashes
            or self.recovering()
            or any(each.is_source and each.state.cursor < world.app.inputs for each in world.everybody)
            or any(item.message.kind == APP for queue in world.network.queues.values() for item in queue)
        )

    def held(self) -> int:
        """Return the number of channels that are held back."""
        return sum(len(process.held) for process in self.world.everybody)

    def recovering(self) -> bool:
        """Return True while a process is down or has not done its part of a plan."""
        return self.world.recovering or self.world.alarm

    def next_input(self, source: str) -> str:
        """Return the name of the input that a source reads next."""
        return f"{source}.{self.world.processes[ProcessId(source)].state.cursor}"

    def newly_shown(self) -> Iterable[str]:
        """Yield the inputs of newly shown rows, by name."""
        world = self.world
        for name, sink in world.sinks.items():
            bits, self.seen[name] = sink.rows[self.seen[name] :], len(sink.rows)
            yield from (world.app.lineage(world.truth.message(bit).body).partition(">")[0] for bit in bits)

    def _step(self) -> bool:
        """Perform the step that is due next; return False if there is none."""
        self._note_arrivals()
        candidates = [(self.when(choice), choice) for choice in self.world.choices()]
        candidates += [(self.ring(choice), choice) for choice in self.world.timers()]
        if self.crashes:
            when, name = self.crashes[0]
            candidates.append((when, self.world.crash_of(name)))
        if not candidates:
            return False
        when, choice = min(candidates, key=lambda each: each[0])
        self._do(max(when, self.now), choice)
        return True

    def _do(self, when: float, choice: Choice) -> None:
        # whole milliseconds, since the choice is JSON and has to replay exactly
        now = int(when)
        # time passes in its own trace entry, so that a replay needs no draws
        if now > self.now:
            self.held_ms += self.held() * (now - self.now)
            self.record(("tick", now))
        if str(choice[0]).startswith("crash"):
            self.crashes.pop(0)
            if choice not in self.world.faults():
                return  # the process is already down
            self.down_since.append(self.now)
        if choice[0] == "read":
            self.reads += 1
            self.first_read.setdefault(self.next_input(str(choice[1])), self.now)
        recovering = self.recovering()
        self.record(choice)
        if recovering and not self.recovering():
            self.recoveries += [self.now - since for since in self.down_since]
            self.down_since = []
        self.shown_ms += [self.now - self.first_read[name] for name in self.newly_shown()]

    def _note_arrivals(self) -> None:
        network = self.world.network
        for queues, fifo in ((network.queues, network.fifo), (network.controls, False)):
            for channel, queue in queues.items():
                for item in queue:
                    # drawn at the send, once; on a FIFO channel a message arrives no earlier than the one before it
                    if item.uid not in self.due:
                        arrival = self.world.now + self.draw(self.latencies.message_ms)
                        floor = self.newest_arrival.get(channel, 0.0) if fifo else 0.0
                        self.due[item.uid] = self.newest_arrival[channel] = max(arrival, floor)

    def when(self, choice: Choice) -> float:
        """Return the time of a choice."""
        world, latencies = self.world, self.latencies
        kind, *what = choice
        if kind == "deliver":
            return self.due[world.network.peek(ChannelId(str(what[0])), int(what[1] or 0)).uid]
        if kind == "replay":
            return world.now
        name = str(what[0]) if what else ""
        mean = {"stored": latencies.store_ms, "publish": latencies.store_ms, "read": latencies.read_ms}
        # with the incarnation: the same step of the next one is another step
        key = (kind, name, world.incarnation, self._which(str(kind), name, what))
        # Drawn once per step and kept: a step that waits must not get a new duration each time that it is looked at.
        if key not in self.due:
            self.due[key] = world.now + self.draw(mean.get(str(kind), latencies.recovery_ms))
        return self.due[key]

    def _which(self, kind: str, name: str, what: Sequence[object]) -> Hashable:
        if kind == "read":
            return self.reads
        if kind == "stored":
            # positions shift when other writes end, so the write is named by its content
            write = self.world.processes[ProcessId(name)].writes[int(str(what[1]))]
            return (write.key, write.token, write.framed)
        if kind == "publish":
            sink = self.world.sinks.get(ProcessId(name))
            return len(sink.rows) if sink else 0
        return what[1] if len(what) > 1 else 0

    def ring(self, choice: Choice) -> float:
        """Return the time of a timer, by the clock of its process."""
        _, name, number = choice
        return self.world.processes[ProcessId(str(name))].timers[int(number or 0)].due


def measure(
    protocol: Protocol,
    graph: Graph,
    seed: int,
    latencies: Latencies = LATENCIES,
    skew_ms: float = 0.0,
    inputs: int = 20,
    settings: ProtocolSettings = TIMED,
    crashes: Sequence[tuple[float, str]] = (),
    story: bool = False,
) -> Measurement:
    """Run and measure one timed run. Clocks are off by up to `skew_ms` either way.

    The oracles judge a sound protocol. An unsound one is audited instead: the result lists the flaws of the lines that
    it calls complete or restores, and the error that ended the run early, if any.
    """
    world = MessageWorld(
        protocol, graph, Faults(crashes=len(crashes)), inputs, settings=settings, clocks=skewed(graph, seed, skew_ms)
    )
    if story:
        world.watch()
    run = TimedRun(world, seed, latencies, crashes)
    condemned = ""
    if protocol.sound:
        _judged(run)
    else:
        condemned = _audited(run)
    # at the end the cursors count each input once, so the other reads were repetitions
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
        tuple(run.shown_ms),
        world.size,
        tuple(run.trace),
        tuple(world.moments or ()),
        condemned,
    )


def _judged(run: TimedRun) -> None:
    run.run()
    run.world.calm()
    run.world.judge()
    run.world.judge_output()


def _audited(run: TimedRun) -> str:
    """Run an unsound protocol. Return the complaint that ended it early, or an empty text."""
    run.world.audits = []
    try:
        run.run()
    except (Violation, ProtocolViolation) as complaint:
        return str(complaint).splitlines()[0]
    return ""


def skewed(graph: Graph, seed: int, skew_ms: float) -> Clocks:
    """Return a clock for each process, each off by a draw from [-skew_ms, skew_ms], and never before 0."""
    # A generator of its own, so that runs with and without skew draw the same durations.
    draws = random.Random(f"clocks {seed}")  # noqa: S311 - not for secrets
    offsets = {name: int(skew_ms + draws.uniform(-skew_ms, skew_ms)) for name in graph.processes}
    return Clocks({name: LinearClock(1.0, offset) for name, offset in offsets.items()})
