"""Timed runs of any world: a seeded draw gives every step its duration, and the step that is due first happens first.

The world is unchanged: this is another way of choosing. The trace contains the time (`tick`), so it replays like any
other.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from checkpoint_lab.job_recovery import Audit
from checkpoint_lab.violations import NoEnd
from checkpoint_lab.world import Choice, Moment, World

STEPS_MAX = 50_000

STATE_BYTES = 1_000
"""Default size of a process's application state, in bytes."""

WorldT = TypeVar("WorldT", bound=World)


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
    state_bytes: int
    """Bytes of stored application state and staged rows: see `stored_size`."""
    trace: tuple[Choice, ...]
    moments: tuple[Moment, ...] = ()
    condemned: str = ""
    """Complaint that ended the run of an unsound protocol early."""


class Clockwork(ABC, Generic[WorldT]):
    """Drives a world by the clock. `crashes`: (ms, process) pairs, in order."""

    def __init__(
        self,
        world: WorldT,
        seed: int,
        latencies: Latencies,
        interval_ms: float,
        crashes: Sequence[tuple[float, str]] = (),
    ) -> None:
        self.world = world
        self.latencies = latencies
        self.interval_ms = interval_ms
        self.random = random.Random(seed)  # noqa: S311 - not for secrets
        self.due: dict[Hashable, float] = {}
        self.crashes = list(crashes)
        self.trace: list[Choice] = []
        self.reads = 0
        self.down_since: float | None = None
        self.recoveries: list[float] = []
        self.held_ms = 0.0
        self.first_read: dict[str, float] = {}
        self.shown_ms: list[float] = []

    @property
    @abstractmethod
    def now(self) -> float:
        """The world's time, in ms."""

    @abstractmethod
    def busy(self) -> bool:
        """Return True while there are inputs to read, rows on their way, or failures to come."""

    @abstractmethod
    def held(self) -> int:
        """Return the number of channels that are held back."""

    @abstractmethod
    def recovering(self) -> bool:
        """Return True while a process has not done its part after a noticed crash."""

    @abstractmethod
    def when(self, choice: Choice) -> float:
        """Return the time of a choice."""

    @abstractmethod
    def ring(self, choice: Choice) -> float:
        """Return the time of a timer."""

    @abstractmethod
    def next_input(self, source: str) -> str:
        """Return the name of the input that a source reads next."""

    @abstractmethod
    def newly_shown(self) -> Iterable[str]:
        """Yield the inputs of the rows that sinks have shown since the last call, by name."""

    def run(self, rounds: float = 2.0) -> None:
        """Run until the application is done, `rounds` intervals longer, then until quiescence. Raises `NoEnd`."""
        quiet_since: float | None = None
        for _ in range(STEPS_MAX):
            quiet_since = None if self.busy() else (self.now if quiet_since is None else quiet_since)
            over = quiet_since is not None and self.now > quiet_since + rounds * self.interval_ms
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

    def _step(self) -> bool:
        """Perform the step that is due next; return False if there is none."""
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
        now = int(when)
        # time passes in its own trace entry, so that a replay needs no draws
        if now > self.now:
            self.held_ms += self.held() * (now - self.now)
            self.record(("tick", now))
        if str(choice[0]).startswith("crash"):
            self.crashes.pop(0)
            if choice not in self.world.faults():
                return  # the process is already down
            self.down_since = self.now
        if choice[0] in ("read", "emit"):
            self.reads += 1
            self.first_read.setdefault(self.next_input(str(choice[1])), self.now)
        recovering = self.recovering()
        self.record(choice)
        if recovering and not self.recovering() and self.down_since is not None:
            self.recoveries.append(self.now - self.down_since)
            self.down_since = None
        self.shown_ms += [self.now - self.first_read[name] for name in self.newly_shown()]
