"""What follows an incarnation that ended with an error: the next one after a pause, or the end of the run.

There are three kinds of errors. An outage (a full disk, a store that does not answer, a host too busy to start Spark's Python
workers) passes: it is waited for, bounded in time, since the number of attempts says nothing about it. What may be the job's own
fault counts against a bound of failures in a row without a new epoch. Everything else is final. Time is passed in, in seconds of
any clock that only grows; nothing here waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_ckpt.errors import CkptError


class Kind(Enum):
    """What an error means for the run."""

    PASSES = "an outage: wait for its end"
    COUNTS = "a failure: it may be the job's own"
    FINAL = "no restart cures it"


def kind_of(error: CkptError) -> Kind:
    """What `error` means for the run."""
    if error.passes:
        return Kind.PASSES
    return Kind.COUNTS if error.retriable else Kind.FINAL


@dataclass(frozen=True, slots=True)
class Ended:
    """An incarnation ended with `error` at `at_s`, `lived_s` after it had begun; `progressed`: it committed an epoch."""

    error: CkptError
    at_s: float
    lived_s: float
    progressed: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """Begin the next incarnation after `pause_s`. `waited_s`: how long the outage has lasted, `attempt`: its number, from 1."""

    pause_s: float
    waited_s: float
    attempt: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run with the error. `failures`: how many came in a row, `waited_s`: how long the outage has lasted."""

    failures: int
    waited_s: float


STOP_MS = 20_000
"""Least time for a final epoch, unless a bound is set."""


def stop_bound_ms(configured_ms: int | None, longest_batch_ms: int) -> int:
    """How long a stop waits for its final epoch: as configured, or three times the longest recent batch, `STOP_MS` at least.

    A batch is under way, the next one ends the epoch, and the commit and the publish may take as long again.
    """
    return max(STOP_MS, 3 * longest_batch_ms) if configured_ms is None else configured_ms


class Patience:
    """The policy of one run. `patience_s` bounds an outage, `max_failures` the failures in a row that the run survives.

    The time of an outage is the time in which no incarnation lived: one that begins and finds the disk full again adds
    what it waited, not what it worked. An epoch ends the outage, and so does an incarnation longer than the patience itself.
    """

    def __init__(
        self, max_failures: int, patience_s: float, first_pause_s: float = 1.0, longest_pause_s: float = 30.0
    ) -> None:
        self._max_failures = max_failures
        self._patience_s = patience_s
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._failures = 0
        self._since_s: float | None = None
        self._attempts = 0
        self._stop_by_s: float | None = None

    def stop_by(self, at_s: float) -> None:
        """Somebody asked for a stop: an outage is not waited for beyond `at_s`."""
        self._stop_by_s = at_s if self._stop_by_s is None else min(self._stop_by_s, at_s)

    def after(self, ended: Ended) -> Pause | GiveUp:
        """What follows this end."""
        if ended.progressed:
            self._failures = 0
        kind = kind_of(ended.error)
        if kind is not Kind.PASSES or ended.progressed or ended.lived_s >= self._patience_s:
            self._since_s, self._attempts = None, 0
        if kind is Kind.FINAL:
            return GiveUp(self._failures, 0.0)
        return self._after_failure() if kind is Kind.COUNTS else self._after_outage(ended)

    def _after_failure(self) -> Pause | GiveUp:
        self._failures += 1
        if self._failures > self._max_failures:
            return GiveUp(self._failures, 0.0)
        return Pause(self._first_pause_s * self._failures, 0.0, self._failures)

    def _after_outage(self, ended: Ended) -> Pause | GiveUp:
        self._since_s = ended.at_s if self._since_s is None else self._since_s + ended.lived_s
        waited_s = ended.at_s - self._since_s
        left_s = self._patience_s - waited_s
        if self._stop_by_s is not None:
            left_s = min(left_s, self._stop_by_s - ended.at_s)
        if left_s <= 0:
            return GiveUp(self._failures, waited_s)
        self._attempts += 1
        growing_s = self._first_pause_s * 2 ** min(self._attempts - 1, 16)
        return Pause(min(growing_s, self._longest_pause_s, left_s), waited_s, self._attempts)
