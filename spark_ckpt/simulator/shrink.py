"""A failing trace made small: leave out what the failure does not need (delta debugging).

A choice that is not possible any more is skipped; after the last one the world is driven on calmly by its first
choices. A trial counts if it fails in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_ckpt.simulator.explore import CALM_STEPS_MAX
from spark_ckpt.simulator.violations import NoEnd, Violation
from spark_ckpt.simulator.world import Choice, Trace, World

Make = Callable[[], World]

TRIALS_MAX = 2_000


@dataclass(frozen=True)
class Shrunk:
    """The smallest failing trace that was found; it replays exactly. `trials` worlds were run for it."""

    trace: tuple[Choice, ...]
    error: Exception
    trials: int


class NotFailing(ValueError):
    """The trace does not fail, so there is nothing to keep while making it smaller."""


def shrink(make: Make, trace: Trace, trials_max: int = TRIALS_MAX) -> Shrunk:
    """Shrink a trace that fails in the world `make()` gives."""
    return _Shrinking(make, trials_max).run(trace)


def attempt(make: Make, trace: Trace) -> tuple[list[Choice], Exception | None]:
    """Follow what is possible of `trace`, settle, judge: what was done, and how it failed."""
    world, done = make(), list[Choice]()
    try:
        for choice in trace:
            if choice in world.possible():
                done.append(choice)
                world.do(choice)
        _settle(world, done)
    except Exception as error:  # noqa: BLE001 - whatever a machine raises is a failure
        return done, error
    return done, None


def _settle(world: World, done: list[Choice]) -> None:
    world.calm()
    for _ in range(CALM_STEPS_MAX):
        choices = world.drain_choices()
        if not choices:
            world.judge()
            return
        done.append(choices[0])
        world.do(choices[0])
    raise NoEnd(f"no end after {CALM_STEPS_MAX} calm steps")


class _Shrinking:
    def __init__(self, make: Make, trials_max: int) -> None:
        self.make = make
        self.trials_max = trials_max
        self.trials = 0

    def run(self, trace: Trace) -> Shrunk:
        done, error = attempt(self.make, trace)
        if error is None:
            raise NotFailing(f"a trace of {len(trace)} choices does not fail")
        kept = self._smaller(list(trace), _signature(error))
        done, last = attempt(self.make, kept)
        if isinstance(last, Violation):
            last.trace = tuple(done)
        return Shrunk(tuple(done), last or error, self.trials)

    def _smaller(self, trace: list[Choice], wanted: str) -> list[Choice]:
        """Remove chunks, halves first, single choices last."""
        size = max(1, len(trace) // 2)
        while self.trials < self.trials_max:
            shorter = self._without_chunks(trace, size, wanted)
            if len(shorter) == len(trace) and size == 1:
                return trace
            size = max(1, min(size // 2, len(shorter) // 2)) if len(shorter) == len(trace) else size
            trace = shorter
        return trace

    def _without_chunks(self, trace: list[Choice], size: int, wanted: str) -> list[Choice]:
        start = 0
        while start < len(trace) and self.trials < self.trials_max:
            candidate = [*trace[:start], *trace[start + size :]]
            if self._fails(candidate, wanted):
                trace = candidate
            else:
                start += size
        return trace

    def _fails(self, trace: Sequence[Choice], wanted: str) -> bool:
        self.trials += 1
        _, error = attempt(self.make, trace)
        return error is not None and _signature(error) == wanted


def _signature(error: Exception) -> str:
    return error.ORACLE if isinstance(error, Violation) else type(error).__name__
