"""Budgets of faults for one run, and the drift of each process's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Faults:
    """Number of faults of each kind in one run. `losses` and `duplicates` count for unreliable channels only."""

    crashes: int = 2
    store_errors: int = 1
    """Writes that fail: the record is absent and the answer is `ok=False`."""
    torn: int = 1
    """Writes of a crashed process that leave an unreadable part of the record."""
    losses: int = 2
    duplicates: int = 2
    pauses: int = 1
    """Processes that stop for a while; every event that is due to them waits."""
    partitions: int = 1
    """Pairs of processes that cannot reach each other for a while."""
    control_losses: int = 0
    control_repeats: int = 0
    """Control messages that are lost or duplicated.

    The control channels are then lossy lines with a `Transport` at both ends.
    """
    late: int = 0
    """Writes and rows of an ended incarnation that reach a store or a sink later."""
    damages: int = 0
    """Acknowledged records that are lost or torn later."""
    suspicions: int = 0
    """Live processes that are taken for dead. A recovery replaces each, and the old one continues as a zombie."""
    staggered: bool = False
    """True if a recovery reaches the processes one by one before it is decided.

    A process that has not heard of the recovery continues to work.
    """

    def times(self, number: int) -> Faults:
        """Return these budgets, each multiplied by `number`."""
        budgets = {kind: number * budget for kind, budget in asdict(self).items() if kind != "staggered"}
        return replace(self, **budgets)


NO_FAULTS = Faults(0, 0, 0, 0, 0, 0, 0)


HOSTILE = Faults(control_losses=2, control_repeats=2, late=2, suspicions=1)
"""Every kind of fault that the contract covers."""


def hostile(seed: int) -> Faults:
    """Return the hostile budgets of a seed.

    Odd seeds stagger recoveries. Seeds with `seed % 4 < 2` have lossy control lines.
    """
    lost, repeated = (HOSTILE.control_losses, HOSTILE.control_repeats) if seed % 4 < 2 else (0, 0)
    return replace(HOSTILE, staggered=seed % 2 == 1, control_losses=lost, control_repeats=repeated)


@dataclass(frozen=True, slots=True)
class LinearClock:
    """A linear clock: `local = offset_ms + rate * time`."""

    rate: float = 1.0
    offset_ms: int = 0

    def local(self, now: float) -> int:
        """Return the time that the process reads at `now`, in ms."""
        return self.offset_ms + int(self.rate * now)

    def after(self, now: float, delay_ms: int) -> float:
        """Return the world's time in ms at which `delay_ms` of this clock have passed."""
        return now + delay_ms / self.rate


PERFECT = LinearClock()


@dataclass(frozen=True)
class Clocks:
    """A clock for each process; a process without an entry has a perfect one."""

    by_process: Mapping[str, LinearClock] = field(default_factory=dict)

    def of(self, process: str) -> LinearClock:
        """Return the clock of a process."""
        return self.by_process.get(process, PERFECT)
