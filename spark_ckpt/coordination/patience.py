"""Restart policy: after an incarnation failed, pause and start the next one, or end the run.

An error is of one of three kinds:

- An outage (full disk, unreachable store, host too busy to start Python workers) passes. The run waits for its end,
  bounded in time: the number of attempts says nothing about it.
- A failure may be the job's own. It counts against a limit of failures in a row without a new epoch.
- Every other error is final.

Callers pass the time in, in seconds of any monotonic clock; nothing here waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_ckpt.errors import CkptError


class Kind(Enum):
    """Consequence of an error for the run."""

    PASSES = "an outage: wait for its end"
    COUNTS = "a failure: it may be the job's own"
    FINAL = "no restart cures it"


def kind_of(error: CkptError) -> Kind:
    """Return the consequence of `error` for the run."""
    if error.passes:
        return Kind.PASSES
    return Kind.COUNTS if error.retriable else Kind.FINAL


@dataclass(frozen=True, slots=True)
class Ended:
    """An incarnation ended with `error` at `at_s`, `lived_s` seconds after its start. `progressed`: it committed an
    epoch.
    """

    error: CkptError
    at_s: float
    lived_s: float
    progressed: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """Start the next incarnation after `pause_s`.

    `waited_s`: duration of the outage so far. `attempt`: its number, from 1.
    """

    pause_s: float
    waited_s: float
    attempt: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run with the error.

    `failures`: number of failures in a row. `waited_s`: duration of the outage so far.
    """

    failures: int
    waited_s: float


STOP_MS = 20_000
"""Minimum time for a final epoch, unless a limit is configured."""


def stop_bound_ms(configured_ms: int | None, longest_batch_ms: int) -> int:
    """Return how many milliseconds a stop waits for its final epoch.

    That is `configured_ms`, or three times the longest recent batch, but at least `STOP_MS`. A batch is running, the
    next one ends the epoch, and commit and publish may take as long again.
    """
    return max(STOP_MS, 3 * longest_batch_ms) if configured_ms is None else configured_ms


class Patience:
    """Restart policy of one run.

    `max_failures`: failures in a row that the run survives. `patience_s`: limit of an outage. The pause starts at
    `first_pause_s` and grows up to `longest_pause_s`.

    An outage counts only the time without a running incarnation. An incarnation that starts and finds the disk full
    again adds its pause, but no time of work. An epoch ends the outage, and so does an incarnation that runs longer
    than `patience_s`.
    """

    def __init__(
        self, max_failures: int, patience_s: float, first_pause_s: float = 1.0, longest_pause_s: float = 30.0
    ) -> None:
        self._max_failures = max_failures
        self._patience_s = patience_s
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._failures = 0
        self.since_s: float | None = None
        self._attempts = 0
        self._stop_by_s: float | None = None

    def stop_by(self, at_s: float) -> None:
        """Set a deadline for outages, after a stop was requested: the run waits at most until `at_s`."""
        # A second stop may shorten the wait, and never extends it.
        self._stop_by_s = at_s if self._stop_by_s is None else min(self._stop_by_s, at_s)

    def after(self, ended: Ended) -> Pause | GiveUp:
        """Return the next step after an incarnation ended."""
        # An epoch shows that the job itself can run. Only failures without one in between are a loop.
        if ended.progressed:
            self._failures = 0
        kind = kind_of(ended.error)
        # The outage is over, or this error is none: a later one is waited for from its own beginning.
        if kind is not Kind.PASSES or ended.progressed or ended.lived_s >= self._patience_s:
            self.since_s, self._attempts = None, 0
        if kind is Kind.FINAL:
            return GiveUp(self._failures, 0.0)
        return self._after_failure() if kind is Kind.COUNTS else self.after_outage(ended)

    def _after_failure(self) -> Pause | GiveUp:
        self._failures += 1
        if self._failures > self._max_failures:
            return GiveUp(self._failures, 0.0)
        return Pause(self._first_pause_s * self._failures, 0.0, self._failures)

    def after_outage(self, ended: Ended) -> Pause | GiveUp:
        """Return the next step after an outage ended an incarnation."""
        # Moving the start by the incarnation's own time leaves only time without one in `waited_s`.
        self.since_s = ended.at_s if self.since_s is None else self.since_s + ended.lived_s
        waited_s = ended.at_s - self.since_s
        left_s = self._patience_s - waited_s
        if self._stop_by_s is not None:
            left_s = min(left_s, self._stop_by_s - ended.at_s)
        if left_s <= 0:
            return GiveUp(self._failures, waited_s)
        self._attempts += 1
        # The exponent is bounded: a long outage must not overflow the pause.
        growing_s = self._first_pause_s * 2 ** min(self._attempts - 1, 16)
        return Pause(min(growing_s, self._longest_pause_s, left_s), waited_s, self._attempts)
