"""The same function gets the same values under Spark's own `applyInPandasWithState` and under ours.

The function reports everything that it can observe (types, dtypes, values, state, timeouts) as text; the reports are
compared.
"""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import StructType

from integration_tests.spark import plain_session
from spark_ckpt.tasks.operators.keyed_function import KeyedFunction
from spark_ckpt.tasks.operators.operator import Binding, Clock
from spark_ckpt.tasks.operators.pandas_rows import PandasOptions
from spark_ckpt.tasks.rows import KEY_HASH, arrow_schema
from spark_ckpt.tasks.state.group_state import KeyGroupState
from spark_ckpt.tasks.state.levels import LevelCache

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

ZONE = "America/New_York"
ROW = (
    "k string, ki int, kd date, kt timestamp, km decimal(10,2), kb boolean, kx double, "
    "v long, x double, b boolean, m decimal(12,3), s string, t timestamp, "
    "a array<int>, p struct<x:int,y:string>, y binary"
)
KEYS = ["k", "ki", "kd", "kt", "km", "kb", "kx"]
# Spark 4.2 fails on arrays and structs in this operator's state (KeyError: elementType); ours supports them.
STATE = "n long, at timestamp, d decimal(10,2), i int, day date, y binary, f double, s string"
OUT = "facts string, at timestamp"
AT = dt.datetime(2024, 7, 1, 3, 4, 5, 678901, tzinfo=dt.UTC)
DAY = dt.date(2024, 7, 1)


def shown(value):
    return f"{type(value).__name__} {value!r}"


def report_all(key, frames, state):
    """Everything that the function can observe, and a state of many types."""
    lines = [f"key {[shown(part) for part in key]}", f"state {state.exists} {shown(state.getOption)}"]
    for frame in frames:
        lines.append(f"frame {list(frame.index)} {type(frame.index).__name__}")
        lines += [f"{name} {frame[name].dtype} {[shown(each) for each in frame[name]]}" for name in frame.columns]
    n = state.get[0] + 1 if state.exists else 1
    local = pd.Timestamp("2024-07-01 03:04:05.678901")
    state.update((n, local, Decimal("1.25"), 5, DAY, b"\0", float("nan") if n == 2 else 0.5, None))
    yield pd.DataFrame({"facts": ["\n".join(lines)], "at": [local]})


def observations():
    full = {
        "k": "a", "ki": 1, "kd": DAY, "kt": AT, "km": Decimal("2.50"), "kb": True, "kx": 0.5, "v": 2**60 + 1,
        "x": 1.5, "b": True, "m": Decimal("3.125"), "s": "text", "t": AT, "a": [1, 2], "p": {"x": 1, "y": "z"},
        "y": b"\0\1",
    }  # fmt: skip
    nothing = dict.fromkeys(full)
    partly = full | dict.fromkeys("vxbmsty") | {"a": [None, 3], "p": {"x": None, "y": None}}
    other = full | {"k": "b"}
    winter = full | {
        "k": "c",
        "kt": dt.datetime(2024, 11, 3, 5, 30, tzinfo=dt.UTC),
        "kx": float("nan"),
        "x": float("nan"),
    }
    return [[full, other, nothing, partly, winter], [full, full | {"v": 7}, nothing, nothing, winter], [other, partly]]


def wait_and_tell(key, frames, state):
    """Set an event-time timeout on rows; report the arguments of the call after the timeout."""
    watermark = state.getCurrentWatermarkMs()
    rows = [[shown(each) for each in frame["v"]] for frame in frames]
    columns = [list(frame.columns) for frame in frames] if state.hasTimedOut else []
    facts = [[shown(part) for part in key], rows, columns, state.hasTimedOut, watermark, shown(state.getOption)]
    yield pd.DataFrame({"facts": [repr(facts)], "at": [None]})
    if state.hasTimedOut:
        state.remove()
    else:
        state.update((len(rows), None, None, None, None, None, None, "waits"))
        state.setTimeoutTimestamp(max(watermark, int(AT.timestamp() * 1000)) + 10_000)


def late_and_early():
    def row(key, value, seconds):
        empty = dict.fromkeys(["ki", "kd", "kt", "km", "kb", "kx", "x", "b", "m", "s", "a", "p", "y"])
        return empty | {"k": key, "v": value, "t": AT + dt.timedelta(seconds=seconds)}

    return [
        [row("a", 1, 0), row("b", 2, 1)],
        [row("b", 3, 5), row("c", 4, 60)],
        [row("c", 5, 61), row("c", 6, -100), row("d", 7, 60)],
        [row("c", 8, 120), row("e", 9, 60), row("f", 10, 58.5)],
    ]


@pytest.fixture(scope="module")
def spark():
    yield from plain_session(
        ZONE, {"spark.sql.shuffle.partitions": "1", "spark.sql.streaming.noDataMicroBatches.enabled": "false"}
    )


def under_spark(spark, folder, batches, func, timeout, watermark):
    """Reports per batch, and the watermark of each batch (ms), under Spark's own operator."""
    source = folder / "in"
    source.mkdir()
    schema = arrow_schema(StructType.fromDDL(ROW))
    rows = spark.readStream.schema(ROW).option("maxFilesPerTrigger", 1).parquet(str(source))
    rows = rows.withWatermark("t", "2 seconds") if watermark else rows
    reports: list[list[tuple[str, dt.datetime | None]]] = []

    def keep(frame, batch):
        reports.append(sorted(map(tuple, frame.selectExpr("facts", "cast(at as long)").collect())))

    query = (
        rows.groupBy(*KEYS)
        .applyInPandasWithState(func, OUT, STATE, "append", timeout)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    try:
        for number, batch in enumerate(batches):
            pq.write_table(pa.Table.from_pylist(batch, schema=schema), folder / "part")
            (folder / "part").rename(source / f"{number}.parquet")
            query.processAllAvailable()
        marks = {each["batchId"]: watermark_ms(each) for each in query.recentProgress}
    finally:
        query.stop()
    return reports, [marks[number] for number in range(len(batches))]


def watermark_ms(progress):
    text = progress["eventTime"].get("watermark")
    return None if text is None else int(dt.datetime.fromisoformat(text).timestamp() * 1000)


def under_ours(spark, folder, batches, func, timeout, marks):
    """The same with our operator: one key group, encoded and decoded between batches."""
    types = {name: StructType.fromDDL(ddl) for name, ddl in (("row", ROW), ("out", OUT), ("state", STATE))}
    operator = KeyedFunction(func, types["row"], KEYS, types["out"], types["state"], "append", timeout)
    operator = operator.bind(Binding("ours", "t", PandasOptions(ZONE, assign_cols_by_name=True)))
    cache = LevelCache(folder / "cache", None, operator.schema)
    state, reports = KeyGroupState(operator.schema, cache, 0).encode(), []
    for batch, mark, late in zip(batches, marks, [0, *marks[:-1]], strict=True):
        table = pa.Table.from_pylist(batch, schema=arrow_schema(types["row"]))
        hashes = spark.createDataFrame(table).selectExpr(f"xxhash64({', '.join(KEYS)}) as h").toArrow().column("h")
        group = KeyGroupState.decode(state, operator.schema, cache, 0)
        tables = list(operator.process(table.append_column(KEY_HASH, hashes), group, Clock(0, mark, late)))
        state = group.encode()
        reports.append(sorted((row["facts"], seconds(row["at"])) for each in tables for row in each.to_pylist()))
    return reports


def seconds(at):
    return None if at is None else int(at.timestamp())


def test_key_frames_state_and_output_are_sparks(spark, tmp_path: Path):
    batches = observations()
    theirs, marks = under_spark(spark, tmp_path, batches, report_all, GroupStateTimeout.NoTimeout, watermark=False)
    ours = under_ours(spark, tmp_path, batches, report_all, GroupStateTimeout.NoTimeout, marks)
    assert ours == theirs
    assert sum(map(len, ours)) > 8


@pytest.mark.long  # in the gate: tests/runtime/test_keyed_function.py
def test_event_time_timeouts_and_late_rows_are_sparks(spark, tmp_path: Path):
    batches = late_and_early()
    theirs, marks = under_spark(
        spark, tmp_path, batches, wait_and_tell, GroupStateTimeout.EventTimeTimeout, watermark=True
    )
    ours = under_ours(spark, tmp_path, batches, wait_and_tell, GroupStateTimeout.EventTimeTimeout, marks)
    assert ours == theirs
    assert any("True" in facts for batch in ours for facts, _ in batch), "some key has timed out"
