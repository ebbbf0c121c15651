"""From one operator to the next without Spark's rows in between: the same rows, keys and types."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from runtime_kit import Bench, drain

import spark_ckpt as ckpt
from spark_ckpt.driver.query import frames
from spark_ckpt.tasks.key_hash import key_hash

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

COUNT = 500
SCHEMA = (
    "row long, text string, bytes binary, long long, int int, short short, byte byte, flag boolean, double double, float float,"
    " day date, moment timestamp, local timestamp_ntz"
)


def _some(random: np.random.Generator, values: list[object]) -> list[object]:
    """The values, with a null for one in seven."""
    return [None if random.random() < 1 / 7 else value for value in values]


def _columns() -> dict[str, pa.Array]:
    random = np.random.default_rng(7)
    numbers = random.integers(-(2**63), 2**63 - 1, COUNT)
    lengths = random.integers(0, 100, COUNT)
    moments = [dt.datetime(1990, 1, 1) + dt.timedelta(microseconds=int(each % 10**15)) for each in numbers]
    special = [0.0, -0.0, float("nan"), float("inf"), -float("inf")]
    made: dict[str, tuple[list[object], pa.DataType]] = {
        "text": (["é" * int(size // 3) + "x" * int(size) for size in lengths], pa.string()),
        "bytes": ([random.bytes(int(size)) for size in lengths], pa.binary()),
        "long": (numbers.tolist(), pa.int64()),
        "int": ((numbers >> 32).tolist(), pa.int32()),
        "short": ((numbers >> 48).tolist(), pa.int16()),
        "byte": ((numbers >> 56).tolist(), pa.int8()),
        "flag": ((numbers % 2 == 0).tolist(), pa.bool_()),
        "double": ((special + random.normal(size=COUNT).tolist())[:COUNT], pa.float64()),
        "float": ((special + random.normal(size=COUNT).tolist())[:COUNT], pa.float32()),
        "day": ([each.date() for each in moments], pa.date32()),
        "moment": ([each.replace(tzinfo=dt.UTC) for each in moments], pa.timestamp("us", "UTC")),
        "local": (moments, pa.timestamp("us")),
    }
    return {name: pa.array(_some(random, values), kind) for name, (values, kind) in made.items()}


def test_keys_have_sparks_hashes(spark: SparkSession) -> None:
    table = pa.table({"row": list(range(COUNT)), **_columns()})
    names = table.column_names[1:]
    wanted = [*([name] for name in names), names]
    frame = spark.createDataFrame(table, SCHEMA)
    hashes = frame.select("row", *(F.xxhash64(*each).alias(f"h{at}") for at, each in enumerate(wanted))).toArrow()
    by_row = hashes.sort_by("row")
    for at, each in enumerate(wanted):
        assert key_hash(table, each).tolist() == by_row[f"h{at}"].to_pylist(), each


def numbered(key: tuple[object, ...], frames: Iterator[object], state: object) -> Iterator[tuple[object, ...]]:
    """Every row with its number within the key, and its form in the worker."""
    count = state.get[0] if state.exists else 0  # type: ignore[attr-defined]
    for frame in frames:
        for row in frame.itertuples(index=False):  # type: ignore[attr-defined]
            count += 1
            yield (*key, count, f"{row.at!r} {row.price!r} {row.parts!r}")
    state.update((count,))  # type: ignore[attr-defined]


def chain(bench: Bench, behind: str) -> ckpt.Job:
    """A sum per key, the columns renamed and shuffled, then a function per key of rows with a time, a decimal and a struct."""
    job = bench.job()
    rows = job.source("in", bench.source()).withColumns(
        {
            "at": F.expr("timestamp '2024-05-01 10:00:00' + make_interval(0, 0, 0, 0, v)"),
            "price": F.expr("CAST(v AS DECIMAL(10, 2)) / 4"),
            "parts": F.expr("struct(v AS a, array(k) AS b)"),
        }
    )
    columns = "k string, v long, at timestamp, price decimal(16, 6), parts struct<a: long, b: array<string>>"
    first = rows.groupBy("k").applyVectorized(passed, columns, "n long", name="first")
    named = first.select("parts", F.col("v").alias("w"), "price", F.col("k").alias("who"), "at")
    output = f"{behind} {'string' if behind == 'who' else 'long'}, n long, seen string"
    named.groupBy(behind).applyInPandasWithState(numbered, output, "n long", "append", "NoTimeout", name="second").to(
        bench.sink(), name="out"
    )
    return job


def passed(batch: ckpt.KeyBatch) -> ckpt.KeyResult:
    """Rows, unchanged."""
    return ckpt.KeyResult(batch.rows, pa.table({"n": pa.array([1] * len(batch), pa.int64())}))


@pytest.mark.parametrize("behind", ["who", pytest.param("w", marks=pytest.mark.long)])
def test_the_next_operator_gets_the_values_that_sparks_rows_would_have(
    bench: Bench, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    handed: list[object] = []
    between = frames.onward_between
    monkeypatch.setattr(frames, "onward_between", lambda *of: handed.append(between(*of)) or handed[-1])
    try:
        bench.put(*[(f"k{number % 5}", number % 11) for number in range(100)])
        drain(chain(bench, behind))
        bench.put(*[(f"k{number % 5}", number % 11) for number in range(100, 150)])
        monkeypatch.setattr(frames, "onward_between", lambda *_: None)
        drain(chain(bench, behind))
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert [each is not None for each in handed] == [True], "passed on in the first run, but not in the second"
    rows = bench.rows()
    assert len(rows) == 150
    for key in {row[behind] for row in rows}:
        own = sorted((row["n"], row["seen"]) for row in rows if row[behind] == key)
        assert [n for n, _ in own] == list(range(1, len(own) + 1)), "one state, for both paths of the rows"
    assert len({row["seen"] for row in rows}) == 5 * 11, "each pair of k and v looks the same in both runs"
