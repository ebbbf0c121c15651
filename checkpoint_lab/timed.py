"""Timed runs of protocols over plain messages; timers run by each process's own clock.

They measure rates of orphans and losses against the skew of clocks, and compare the costs of protocols.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Sequence

from checkpoint_lab.clockwork import LATENCIES, STATE_BYTES, Clockwork, Latencies, Measurement
from checkpoint_lab.faults import Clock, Clocks, Faults
from checkpoint_lab.message_world import MessageWorld
from checkpoint_lab.violations import Violation
from checkpoint_lab.world import Choice
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import ChannelId, ProcessId
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Protocol, Settings

ROUNDS_MAX = 20

TIMED = Settings(interval_ms=200)
"""Settings with a checkpoint about every ten inputs."""


class TimedRun(Clockwork[MessageWorld]):
    """Drives a message world by the clock."""

    def __init__(
        self, world: MessageWorld, seed: int, latencies: Latencies, crashes: Sequence[tuple[float, str]] = ()
    ) -> None:
        super().__init__(world, seed, latencies, world.settings.interval_ms, crashes)
        self.newest_arrival: dict[ChannelId, float] = {}
        self.seen = dict.fromkeys(world.sinks, 0)

    def show_the_rest(self) -> None:
        """Repeat periodic checkpoints until every row is shown."""
        for _ in range(ROUNDS_MAX):
            if not self.world.owes():
                return
            for choice in self.world.periodic():
                self.record(choice)
            self.settle()

    @property
    def now(self) -> float:
        """The world's time, in ms."""
        return self.world.now

    def busy(self) -> bool:
        """Return True while there are inputs to read, rows on their way, or failures to come."""
        world = self.world
        return bool(
            self.crashes
            or world.recovering
            or world.alarm
            or any(each.is_source and each.state.cursor < world.app.inputs for each in world.everybody)
            or any(item.message.kind == APP for queue in world.network.queues.values() for item in queue)
        )

    def held(self) -> int:
        """Return the number of channels that are held back."""
        return sum(len(process.held) for process in self.world.everybody)

    def recovering(self) -> bool:
        """Return True while a process has not done its part of a plan."""
        return self.world.recovering

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
        self._note_arrivals()
        return super()._step()

    def _note_arrivals(self) -> None:
        """Draw the arrival of each message when it is sent; on a FIFO channel no message overtakes another."""
        network = self.world.network
        for queues, fifo in ((network.queues, network.fifo), (network.controls, False)):
            for channel, queue in queues.items():
                for item in queue:
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
        key = (kind, name, world.incarnation, self._which(str(kind), name, what))
        if key not in self.due:
            self.due[key] = world.now + self.draw(mean.get(str(kind), latencies.recovery_ms))
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
    settings: Settings = TIMED,
    crashes: Sequence[tuple[float, str]] = (),
    story: bool = False,
    state_bytes: int = STATE_BYTES,
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
        world.size.bytes(state_bytes),
        tuple(run.trace),
        tuple(world.moments or ()),
        condemned,
    )


def _judged(run: TimedRun) -> None:
    run.run()
    run.world.calm()
    run.show_the_rest()
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
    draws = random.Random(f"clocks {seed}")  # noqa: S311 - not for secrets
    offsets = {name: int(skew_ms + draws.uniform(-skew_ms, skew_ms)) for name in graph.processes}
    return Clocks({name: Clock(1.0, offset) for name, offset in offsets.items()})
