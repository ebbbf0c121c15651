"""Watermark and timeouts survive a restart; operators stand between any stateless operations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import spark_ckpt as ckpt
from integration_tests.survival.process import wait_until
from integration_tests.survival.session import TIMEOUT_S, Place, drained
from spark_ckpt.errors import RunFailed

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import test modules
TIMED = "k string, at timestamp, n long"
SEEN = "k string, what string, rows long"
Seen = tuple[str, str, int]


def at(seconds: int) -> str:
    return f"2026-01-01T00:{seconds // 60:02}:{seconds % 60:02}Z"


def session_of(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[Seen]:
    """Count a key's rows; report them 10 s of event time after the newest one."""
    count = state.get[0] if state.exists else 0
    if state.hasTimedOut:
        state.remove()
        yield key[0], "ended", count
        return
    for frame in frames:
        count += len(frame)
        newest_ms = int(frame["at"].max().timestamp() * 1000)
        state.setTimeoutTimestamp(max(newest_ms, state.getCurrentWatermarkMs()) + 10_000)
    state.update((count,))
    yield key[0], "seen", count


def alarm_of(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[Seen]:
    """Count a key's rows; report them 20 s after the last one."""
    count = state.get[0] if state.exists else 0
    if state.hasTimedOut:
        state.remove()
        yield key[0], "ended", count
        return
    count += sum(len(frame) for frame in frames)
    state.update((count,))
    state.setTimeoutDuration(20_000)
    yield key[0], "seen", count


def sessions(place: Place) -> ckpt.Job:
    job = place.job(max_failed_epochs=0)
    rows = job.source("rows", place.source(TIMED)).withWatermark("at", "5 seconds")
    timeout = GroupStateTimeout.EventTimeTimeout
    out = rows.groupBy("k").applyInPandasWithState(session_of, SEEN, "rows long", "append", timeout, "sessions")
    out.to(place.sink(), name="out")
    return job


def alarms(place: Place) -> ckpt.Job:
    job = place.job()
    rows = job.source("rows", place.source(TIMED))
    timeout = GroupStateTimeout.ProcessingTimeTimeout
    out = rows.groupBy("k").applyInPandasWithState(alarm_of, SEEN, "rows long", "append", timeout, "alarms")
    out.to(place.sink(), name="out")
    return job


def emitted(place: Place) -> list[tuple[Any, ...]]:
    return sorted((row["k"], row["what"], row["rows"]) for row in place.output())


def row(key: str, seconds: int) -> dict[str, object]:
    return {"k": key, "at": at(seconds), "n": seconds}


@pytest.mark.long
def test_an_event_time_timeout_set_before_a_restart_fires_after_it(place: Place) -> None:
    place.write(1, [row("a", 0), row("a", 3)])
    drained(sessions(place))
    assert emitted(place) == [("a", "seen", 2)]

    place.write(2, [row("b", 100)])
    drained(sessions(place))

    assert emitted(place) == [("a", "ended", 2), ("a", "seen", 2), ("b", "seen", 1)]


@pytest.mark.long  # in the gate: integration_tests/runtime/test_jobs.py
def test_the_watermark_survives_a_restart(place: Place) -> None:
    """Spark's own checkpoint is new and has no watermark; a row that was late before is still late."""
    place.write(1, [row("a", 100)])
    place.write(2, [row("a", 101)])
    drained(sessions(place))

    place.write(3, [row("late", 20), row("a", 102)])
    run = drained(sessions(place))

    assert not [each for each in emitted(place) if each[0] == "late"]
    assert sum(each["late"] for each in run.recentProgress) == 1


@pytest.mark.long  # in the gate: integration_tests/runtime/test_jobs.py, timeouts over restarts
def test_a_timeout_fires_once_although_the_epoch_in_which_it_fired_was_lost(
    place: Place, crash: Callable[[str], None]
) -> None:
    """The incarnation fails between the firing and the commit; the next one fires again, the sink gets it once."""
    place.write(1, [row("a", 0)])
    drained(sessions(place))
    place.write(2, [row("b", 100)])
    crash("EPOCH_COMMITTING:raise")
    with pytest.raises(RunFailed):
        sessions(place).start(availableNow=True).awaitTermination(TIMEOUT_S)
    crash("")

    drained(sessions(place))

    assert emitted(place) == [("a", "ended", 1), ("a", "seen", 1), ("b", "seen", 1)]


@pytest.mark.long  # in the gate: tests/runtime/test_group_state.py
def test_a_processing_time_timeout_fires_without_new_data_also_after_a_crash(
    place: Place, crash: Callable[[str], None]
) -> None:
    """The run fails when the epoch with the row is committed; the timeout is due in the next one, which gets no rows."""
    place.write(1, [row("a", 0)])
    crash("EPOCH_COMMITTED:raise:2")
    with pytest.raises(RunFailed):
        alarms(place).start().awaitTermination(TIMEOUT_S)
    crash("")

    run = alarms(place).start()
    try:
        wait_until(lambda: ("a", "ended", 1) in emitted(place), "the timeout fires and is published", 120)
    finally:
        assert run.stop(TIMEOUT_S)

    assert emitted(place) == [("a", "ended", 1), ("a", "seen", 1)]
    assert sum(each["numInputRows"] for each in run.recentProgress) == 0


@pytest.mark.long  # in the gate: integration_tests/runtime/test_jobs.py, on a shared session
def test_static_joins_stand_before_and_after_the_operator(place: Place) -> None:
    rates = place.spark.createDataFrame([("a", 2), ("b", 3)], "k string, rate long")
    names = place.spark.createDataFrame([("a", "Anna"), ("b", "Bob")], "k string, name string")
    for number, rows in enumerate(([("a", 1), ("b", 1)], [("a", 5), ("c", 9)])):
        place.write(number, [{"k": key, "v": value, "n": number} for key, value in rows])
        job = place.job()
        rated = job.source("rows", place.source()).join(rates, "k").withColumn("v", F.col("v") * F.col("rate"))
        totals = rated.groupBy("k").agg("each row", total=ckpt.sum("v"))
        named = totals.join(names, "k").filter("total > 0").select("name", "total")
        named.to(place.sink(), name="out")
        drained(job)

    rows = sorted((each["name"], each["total"]) for each in place.output())
    assert rows == [("Anna", 2), ("Anna", 12), ("Bob", 3)]


@pytest.mark.long  # in the gate: integration_tests/runtime/test_jobs.py
def test_a_stateless_job_is_exact_over_restarts_and_lost_epochs(place: Place, crash: Callable[[str], None]) -> None:
    for number in range(3):
        place.write(number, [{"k": "a", "v": 1, "n": number * 10 + n} for n in range(10)])
        if number == 1:
            crash("EPOCH_COMMITTING:raise")
            with pytest.raises(RunFailed):
                _stateless(place).start(availableNow=True).awaitTermination(TIMEOUT_S)
            crash("")
        drained(_stateless(place))

    assert sorted(each["n"] for each in place.output()) == [n for n in range(30) if n % 2]


def _stateless(place: Place) -> ckpt.Job:
    job = place.job(max_failed_epochs=0)
    job.source("rows", place.source()).filter("n % 2 = 1").to(place.sink(), name="out")
    return job
