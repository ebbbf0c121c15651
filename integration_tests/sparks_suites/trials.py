"""Run one of Spark's tests with jobs, and search for the cause if it does not pass.

The search is an experiment: the same test with plain queries, first unchanged, then with each setting that a job's query has and
the test has not.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from types import FrameType
from typing import Any
from unittest import mock

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

from integration_tests.programs.histories import session_set
from integration_tests.sparks_suites.grafting import Grafting
from integration_tests.sparks_suites.queries import Change
from integration_tests.sparks_suites.suites import Case

ENOUGH_S = 600
JOBS_SETTINGS = {"spark.sql.streaming.noDataMicroBatches.enabled": "true"}
"""Settings of a query with Spark's own operators that a job changes, and that change results: `docs/porting.md`."""


class Outcome(StrEnum):
    """The result of one test."""

    PASSED = "passed"
    DIFFERS = "differs"
    NO_COUNTERPART = "no counterpart"
    NO_QUERY = "no query"
    SKIPPED = "skipped"
    FAILS_IN_SPARK = "fails in Spark"


@dataclass(frozen=True)
class Trial:
    """One test's result. `why`: the last lines of its error. `alone`: settings that also make plain Spark fail; `searched`: the
    search has run.

    `queries`: jobs that the test started. `batches`: input batches. `restarts`: of jobs that continued from an epoch.
    """

    module: str
    suite: str
    test: str
    outcome: Outcome
    why: str = ""
    alone: tuple[str, ...] = ()
    searched: bool = False
    queries: int = 0
    batches: int = 0
    restarts: int = 0
    seconds: float = 0


def try_case(spark: SparkSession, case: Case, planted: Change = lambda frame: frame, search: bool = True) -> Trial:
    """Run a test with jobs. `planted` changes their input; `search`: search for the cause if the test does not pass."""
    began_s, grafting = time.monotonic(), Grafting(planted)
    with grafting.entered():
        error = _error_of(spark, case)
    outcome, why = _judged(grafting, error), error
    if outcome is Outcome.NO_COUNTERPART:
        why = grafting.lacks[0]
    elif grafting.raised is not None and outcome is Outcome.DIFFERS:
        why = f"{type(grafting.raised).__name__}: {str(grafting.raised)[:400]}\n{why}"
    sites = grafting.sites.values()
    batches = sum(len(site.batches) for site in sites)
    seconds = round(time.monotonic() - began_s, 1)
    trial = Trial(
        case.module, case.suite, case.test, outcome, _ends(why), (), False,
        grafting.asked, batches, grafting.restarts, seconds,
    )  # fmt: skip
    return searched(spark, case, trial) if search and outcome is Outcome.DIFFERS else trial


def _judged(grafting: Grafting, error: str) -> Outcome:
    if error.startswith(_SKIP):
        return Outcome.SKIPPED
    if grafting.lacks:
        return Outcome.NO_COUNTERPART
    if error:
        return Outcome.DIFFERS
    return Outcome.PASSED if grafting.asked else Outcome.NO_QUERY


def searched(spark: SparkSession, case: Case, trial: Trial) -> Trial:
    """Run a test that differs with plain queries: unchanged, then with each of a job's settings."""
    if error := _error_of(spark, case):
        return replace(trial, outcome=Outcome.FAILS_IN_SPARK, why=_ends(error), searched=True)
    own = case.settings()
    alone = tuple(
        setting
        for setting, value in JOBS_SETTINGS.items()
        if own.get(setting) != value and _error_of(spark, case, {setting: value})
    )
    return replace(trial, alone=alone, searched=True)


def _ends(text: str) -> str:
    return text if len(text) < 1000 else f"{text[:500]} ... {text[-500:]}"


_SKIP = "skipped: "


def _error_of(spark: SparkSession, case: Case, forced: dict[str, str] | None = None) -> str:
    """Return the end of the test's error, or an empty text. `forced`: settings that the test cannot change."""
    with _bounded(), _forced(spark, forced or {}):
        result = case.run(spark)
    for query in spark.streams.active:
        query.stop()
    if result.skipped:
        return _SKIP + result.skipped[0][1]
    failed = [*result.errors, *result.failures]
    return failed[0][1].strip() if failed else ""


@contextmanager
def _forced(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Start each query with these settings, over the test's own: a query copies them when it starts."""
    real = DataStreamWriter.start

    def start(*args: Any, **kwargs: Any) -> Any:
        with session_set(spark, settings):
            return real(*args, **kwargs)

    with mock.patch.object(DataStreamWriter, "start", start if settings else real):
        yield


@contextmanager
def _bounded() -> Iterator[None]:
    """Raise `TimeoutError` in a test that does not end."""

    def over(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test has not ended within {ENOUGH_S} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(ENOUGH_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
