"""An operator after another one also has event time, if its input's rows name the column."""

from __future__ import annotations

import datetime as dt
import sys
from collections import Counter

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F
from runtime_kit import Bench, drain

import spark_ckpt as ckpt
from spark_ckpt.errors import GraphInvalid

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

LASTS_S, WINDOW_S, LAST_S = 10, 20, 10_000
SECONDS = [100 + 7 * number for number in range(16)]


def at(second: float) -> dt.datetime:
    return dt.datetime(2024, 7, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)


def end(key, frames, state):
    """End a key a fixed time after its row, and emit its end."""
    if state.hasTimedOut:
        (over_ms,) = state.get
        state.remove()
        yield key[0], pd.Timestamp(over_ms, unit="ms", tz="UTC")
        return
    (row,) = (second for frame in frames for second in frame["second"])
    over_ms = int(at(row + LASTS_S).timestamp() * 1000)
    state.update((over_ms,))
    state.setTimeoutTimestamp(over_ms)


def counted(bench: Bench) -> ckpt.Run:
    """Ended keys per window of their end."""
    job = bench.job(key_groups=3)
    rows = job.source("in", bench.source()).withWatermark("at", "5 seconds")
    ended = rows.groupBy("k").applyInPandasWithState(
        end, "k string, over timestamp", "over_ms long", "append", "EventTimeTimeout", name="ended"
    )
    windows = ended.withEventTime("over").groupBy(F.window("over", f"{WINDOW_S} seconds"))
    windows.agg(name="counted", n=ckpt.count()).to(bench.sink(), name="out")
    return drain(job)


@pytest.mark.long
def test_rows_of_a_timeout_are_in_time_for_the_next_operator_also_after_a_stop(
    bench: Bench,
) -> None:
    bench.schema = "k string, second long, at timestamp"
    for start in range(0, len(SECONDS), 4):
        for second in SECONDS[start : start + 4]:
            bench.put((f"k{second}", second, at(second)))
        assert counted(bench).lastProgress["totals"]["late"] == 0
    for second in (LAST_S, LAST_S + 1):  # the second one makes the ends visible that the first one caused
        bench.put((f"k{second}", second, at(second)))
        run = counted(bench)
    assert run.lastProgress["totals"]["late"] == 0

    last: Counter[float] = Counter()
    for row in bench.rows():
        start = row["window"]["start"]
        last[start] = max(last[start], row["n"])
    times = Counter(at((second + LASTS_S) // WINDOW_S * WINDOW_S) for second in SECONDS)
    assert last == times
    assert len(ckpt.read_state(str(bench.folder / "store"), "counted")) == 0, "every window is closed"


def test_event_time_that_no_operator_above_has_is_refused(bench: Bench) -> None:
    bench.schema = "k string, at timestamp"
    rows = bench.job().source("in", bench.source())
    with pytest.raises(GraphInvalid, match="rows come from 'in', where no event time arrives"):
        rows.withEventTime("at")
    last = rows.groupBy("k").agg(name="last", at=ckpt.last("at"))
    with pytest.raises(GraphInvalid, match="rows come from 'last', where no event time arrives"):
        last.withEventTime("at")
    timed = rows.withWatermark("at", "1 second").groupBy("k").agg(name="timed", newest=ckpt.max("at"))
    with pytest.raises(GraphInvalid, match="withEventTime needs a timestamp column, 'k' is none"):
        timed.withEventTime("k")
    with pytest.raises(GraphInvalid, match=r"withWatermark follows operator 'timed'(.|\n)*withEventTime\('newest'\)"):
        timed.withWatermark("newest", "1 second")
