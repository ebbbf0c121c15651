"""The same user function under Spark's own `applyInPandasWithState` and in a job: outputs and states are equal.

Both read the same files in the same batches, in a session whose time zone is not UTC.
"""

from __future__ import annotations

import datetime as dt
import math
import sys
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from runtime_kit import Bench, drain

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

ROW = "k string, day date, v long, m decimal(12,3), t timestamp, a array<int>, s string"
KEYS = ["k", "day"]
OUT = "k string, day date, seen string, n long, total decimal(12,3), newest timestamp, items array<int>, text string"
STATE = "n long, total decimal(12,3), newest timestamp, text string"
DAY = dt.date(2024, 3, 10)  # clocks change in the session's time zone
AT = dt.datetime(2024, 3, 10, 6, 59, 59, 123456, tzinfo=dt.UTC)


def life_of_a_key(key, frames, state):
    """Use every part of GroupState: exists, get, getOption, update, remove, an update after a remove."""
    seen, items, before = [f"{state.exists} {state.getOption is None} {state.hasTimedOut}"], [], state.getOption
    n, total, newest, text = state.get if state.exists else (0, Decimal("0.000"), None, None)
    for frame in frames:
        for row in frame.itertuples():
            n += 1
            total += row.m if row.m is not None else 0
            if not pd.isna(row.t) and (newest is None or row.t > newest):
                newest = row.t
            items += [] if row.a is None else [int(each) for each in row.a if each is not None]
            text = row.s if row.s is not None else text
    seen.append("none" if before is None else f"{before[0]} {before[1]} {before[3]}")
    if text == "remove":
        state.remove()
        seen.append(f"removed {state.exists}")
    elif text == "back":
        state.remove()
        state.update((1, Decimal("0.001"), None, None))
        seen.append(f"back {state.get[0]} {state.exists}")
    elif text != "keep":
        state.update((n, total, None if newest is None else pd.Timestamp(newest).to_pydatetime(), text))
        seen.append(f"updated {state.get[0]}")
    yield pd.DataFrame({
        "k": [key[0]], "day": [key[1]], "seen": ["; ".join(seen)], "n": [n], "total": [total],
        "newest": [newest], "items": [items], "text": [text],
    })  # fmt: skip


def as_tuples(key, frames, state):
    """The same, with its rows as plain tuples."""
    for frame in life_of_a_key(key, frames, state):
        for row in frame.itertuples(index=False):
            yield tuple(None if isinstance(each, type(pd.NaT)) else each for each in row)


def as_dicts(key, frames, state):
    """The same, with its rows as dicts."""
    for frame in life_of_a_key(key, frames, state):
        names = list(frame.columns)
        for row in frame.itertuples(index=False):
            yield {n: None if isinstance(v, type(pd.NaT)) else v for n, v in zip(names, row, strict=True)}


def row(k, day, v, m=None, t=None, a=None, s=None):
    return (k, day, v, None if m is None else Decimal(m), t, a, s)


BATCHES = [
    [row("a", DAY, 1, "1.250", AT, [1, 2]), row("a", DAY, 2, "0.001"), row(None, None, 3, None, AT), row("b", None, 4)],
    [row("a", DAY, 5, "-9.999", AT + dt.timedelta(hours=1), [3, None], "text"), row(None, None, 6, s="keep"),
     row("b", DAY, 7, a=[])],
    [row("a", DAY, 8, s="remove"), row("b", None, 9, s="back"), row("b", DAY, 10, "3.000")],
    [row("a", DAY, 11, "7.000", AT), row("b", None, 12), row(None, None, 13, "1.000"), row("c", DAY, 14, s="remove")],
]  # fmt: skip


def under_spark(bench: Bench, func, mode: str, timeout: str = "NoTimeout", watermark: str | None = None):
    """Rows of all batches under Spark's own operator."""
    found: list[tuple[object, ...]] = []
    stream = bench.spark.readStream.schema(bench.schema).option("maxFilesPerTrigger", 1).parquet(str(bench.input()))
    stream = stream.withWatermark("t", watermark) if watermark else stream
    keyed = stream.groupBy(*KEYS).applyInPandasWithState(func, OUT, STATE, mode, timeout)
    query = (
        keyed.writeStream.outputMode(mode)
        .foreachBatch(lambda frame, _: found.extend(frame.toArrow().to_pylist()))
        .option("checkpointLocation", str(bench.folder / f"checkpoint-{mode}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return found


def in_a_job(bench: Bench, func, mode: str, timeout: str = "NoTimeout", watermark: str | None = None):
    """Rows of all batches in a job of ours."""
    name = f"{mode}-{func.__name__}"
    import spark_ckpt as ckpt

    job = ckpt.Job(bench.spark, "job", str(bench.folder / f"store-{name}"), key_groups=3, trigger="10 ms")
    stream = job.source("in", bench.source())
    stream = stream.withWatermark("t", watermark) if watermark else stream
    keyed = stream.groupBy(*KEYS).applyInPandasWithState(func, OUT, STATE, mode, timeout)
    keyed.to(bench.sink(name), name="out")
    drain(job)
    return bench.rows(name)


def comparable(rows):
    return sorted((tuple(map(plain, each.values())) for each in rows), key=repr)


def plain(value):
    if isinstance(value, float) and math.isnan(value):
        return None
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


@pytest.fixture(scope="module")
def seen(spark: SparkSession, tmp_path_factory) -> tuple[Bench, list]:
    """The input and Spark's output, in one output mode for all tests: the function's rows are the same in each mode."""
    bench = Bench(spark, tmp_path_factory.mktemp("spark"), ROW)
    for rows in BATCHES:
        bench.put(*rows)
    return bench, comparable(under_spark(bench, life_of_a_key, "append"))


@pytest.mark.parametrize(
    ("func", "mode"),
    [
        (life_of_a_key, "update"),
        # in the gate: tests/runtime/test_group_state.py
        *(pytest.param(func, "append", marks=pytest.mark.long) for func in (as_tuples, as_dicts)),
    ],
)
def test_outputs_and_states_are_sparks_for_every_form_of_rows(seen, func, mode) -> None:
    bench, expected = seen
    assert comparable(in_a_job(bench, func, mode)) == expected
    assert len(expected) == 13


def quiet(key, frames, state):
    """Event time: set a timeout on rows, and emit a row when it has passed."""
    if state.hasTimedOut:
        n, total, newest, text = state.get
        state.remove()
        reason, items = f"timed out {state.getCurrentWatermarkMs()} {len(list(frames))}", []
    else:
        frame = pd.concat(list(frames))
        n, total, newest, text = (state.get[0] if state.exists else 0) + len(frame), Decimal("1.000"), None, "rows"
        reason, items = "rows", [int(each) for each in frame["v"]]
        state.update((n, total, newest, text))
        state.setTimeoutTimestamp(max(int(AT.timestamp() * 1000) + 60_000, state.getCurrentWatermarkMs() + 1))
    yield pd.DataFrame({
        "k": [key[0]], "day": [key[1]], "seen": [reason], "n": [n], "total": [total], "newest": [newest],
        "items": [items], "text": [text],
    })  # fmt: skip


def test_event_time_timeouts_fire_as_sparks_do(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(spark, tmp_path, ROW)
    minutes = [[("a", 0), ("b", 0)], [("c", 10)], [("a", 11), ("c", 12)], [("d", 13)]]
    for number, batch in enumerate(minutes):
        bench.put(*[row(k, DAY, number, t=AT + dt.timedelta(minutes=minute)) for k, minute in batch])
    options = ("update", "EventTimeTimeout", "30 seconds")
    theirs, ours = under_spark(bench, quiet, *options), in_a_job(bench, quiet, *options)
    assert stable(ours) == stable(theirs)
    assert any("timed out" in str(each["seen"]) for each in theirs)


def stable(rows):
    """The part of the rows that later batches cannot change: the keys, when they came first, and their state."""
    return sorted({(each["k"], str(each["seen"]).split(" 17")[0], each["n"], tuple(each["items"])) for each in rows})


def test_the_state_of_a_job_is_the_functions_last_state(seen, spark: SparkSession) -> None:
    """Keys, values and types of the last epoch, read from the store without Spark."""
    from spark_ckpt.store.store import Store

    bench, _ = seen
    store = Store.open(str(bench.folder / "store-update-life_of_a_key"), "job")
    state = (
        store.state("life_of_a_key").read(store.log.state().latest).sort_by([("k", "ascending"), ("day", "ascending")])
    )
    assert state.schema.field("total").type == pa.decimal128(12, 3)
    found = {(each["k"], each["day"]): (each["n"], each["total"]) for each in state.to_pylist()}
    assert found == {
        ("a", DAY): (1, Decimal("7.000")),
        ("b", None): (2, Decimal("0.001")),
        ("b", DAY): (2, Decimal("3.000")),
        (None, None): (2, Decimal("1.000")),
    }
