"""Delta debugging: shrink a failing trace to the choices that its failure needs.

A choice that is no longer possible is skipped. After the last choice the world is driven calmly by its first choices. A
trial counts if it fails in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from checkpoint_lab.explore import settle
from checkpoint_lab.violations import Violation
from checkpoint_lab.world import CALM, Choice, Trace, World

Make = Callable[[], World]

TRIALS_MAX = 2_000


@dataclass(frozen=True)
class Shrunk:
    """The smallest failing trace that was found; it replays exactly. `trials` counts the worlds that were run."""

    trace: tuple[Choice, ...]
    error: Exception
    trials: int


class NotFailing(ValueError):
    """The trace does not fail, so it cannot be shrunk."""


def shrink(make: Make, trace: Trace, trials_max: int = TRIALS_MAX) -> Shrunk:
    """Shrink a trace that fails in the world that `make()` returns. Raises `NotFailing`."""
    return _Shrinking(make, trials_max).run(trace)


def attempt(make: Make, trace: Trace) -> tuple[list[Choice], Exception | None]:
    """Follow the possible choices of `trace`, settle, judge. Return the performed choices and the error, if any."""
    world, done = make(), list[Choice]()
    try:
        for choice in trace:
            if choice == CALM or choice in world.possible():
                done.append(choice)
                world.perform(choice)
        settle(world, done)
    except Exception as error:  # noqa: BLE001 - any error of a machine is a failure
        return done, error
    return done, None


class _Shrinking:
    def __init__(self, make: Make, trials_max: int) -> None:
        self.make = make
        self.trials_max = trials_max
        self.trials = 0

    def run(self, trace: Trace) -> Shrunk:
        done, error = attempt(self.make, trace)
        if error is None:
            raise NotFailing(f"a trace of {len(trace)} choices does not fail")
        kept = self._smaller(done, _signature(error))
        _, last = attempt(self.make, kept)
        if isinstance(last, Violation):
            last.trace = tuple(kept)
        return Shrunk(tuple(kept), last or error, self.trials)

    def _smaller(self, trace: list[Choice], wanted: str) -> list[Choice]:
        """Remove chunks, halves first, down to single choices, until none can be removed."""
        size = max(1, len(trace) // 2)
        while self.trials < self.trials_max:
            shorter = self._without_chunks(trace, size, wanted)
            # no single choice can be removed
            if len(shorter) == len(trace) and size == 1:
                return trace
            if len(shorter) == len(trace):
                size = max(1, min(size, len(trace)) // 2)
            trace = shorter
        return trace

    def _without_chunks(self, trace: list[Choice], size: int, wanted: str) -> list[Choice]:
        start = 0
        while start < len(trace) and self.trials < self.trials_max:
            done = self._fails([*trace[:start], *trace[start + size :]], wanted)
            if done is not None and len(done) < len(trace):
                trace = done
            else:
                start += size
        return trace

    def _fails(self, trace: Trace, wanted: str) -> list[Choice] | None:
        """Return the performed choices if the trace fails in the wanted way."""
        self.trials += 1
        done, error = attempt(self.make, trace)
        return done if error is not None and _signature(error) == wanted else None


def _signature(error: Exception) -> str:
    return error.ORACLE if isinstance(error, Violation) else type(error).__name__
