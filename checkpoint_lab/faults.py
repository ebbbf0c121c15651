"""How much may go wrong in one run, and how processes' clocks differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Faults:
    """Budgets: each fault of a kind costs one. `losses` and `duplicates` count only for unreliable channels."""

    crashes: int = 2
    store_errors: int = 1
    """Writes answered with `ok=False`, not there."""
    torn: int = 1
    """Writes of a crashed process that are there in part: unreadable."""
    losses: int = 2
    duplicates: int = 2
    pauses: int = 1
    """Processes that stand still for a while, with everything due to them."""
    partitions: int = 1
    """Pairs of processes that cannot reach each other for a while."""
    control_losses: int = 0
    control_repeats: int = 0
    """Control messages that are lost, or come twice: the control channels are lines, and a `Transport` stands at both ends."""
    late: int = 0
    """What a life that is over had under way reaches a store or a sink after all."""
    damages: int = 0
    """Acknowledged records that are lost or torn afterwards."""
    suspicions: int = 0
    """Processes that are taken for dead and are not: each is replaced, and goes on as a zombie."""
    staggered: bool = False
    """A recovery reaches the processes one by one, before it is decided: who has not heard of it works on."""

    def times(self, number: int) -> Faults:
        """So many times as many of each kind."""
        budgets = {kind: number * budget for kind, budget in asdict(self).items() if kind != "staggered"}
        return replace(self, **budgets)


NO_FAULTS = Faults(0, 0, 0, 0, 0, 0, 0)


HOSTILE = Faults(control_losses=2, control_repeats=2, late=2, suspicions=1)
"""Everything that the contract speaks of."""


def hostile(seed: int) -> Faults:
    """Everything that the contract speaks of: recoveries are staggered under every other seed, lines fail under every other two."""
    lost, repeated = (HOSTILE.control_losses, HOSTILE.control_repeats) if seed % 4 < 2 else (0, 0)
    return replace(HOSTILE, staggered=seed % 2 == 1, control_losses=lost, control_repeats=repeated)


@dataclass(frozen=True, slots=True)
class Clock:
    """`local = offset_ms + rate * time`."""

    rate: float = 1.0
    offset_ms: int = 0

    def local(self, now: float) -> int:
        """What the process reads at `now`."""
        return self.offset_ms + int(self.rate * now)

    def after(self, now: float, delay_ms: int) -> float:
        """When `delay_ms` of this clock will have passed."""
        return now + delay_ms / self.rate


PERFECT = Clock()


@dataclass(frozen=True)
class Clocks:
    """A clock per process; who is not named has a perfect one."""

    by_process: Mapping[str, Clock] = field(default_factory=dict)

    def of(self, process: str) -> Clock:
        """That process's."""
        return self.by_process.get(process, PERFECT)
