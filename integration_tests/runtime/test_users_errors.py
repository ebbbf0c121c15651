"""Errors in the user's code: reported at once and with their lines, except transient ones."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.types import LongType
from runtime_kit import Bench, Heard, drain, some

import spark_ckpt as ckpt

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

MOST = 2**63 - 1
Shape = Callable[[ckpt.Stream], ckpt.Stream]


def inverse(value):
    return 1 // value


def keyed(function) -> Shape:
    def shaped(rows):
        return rows.groupBy("k").applyInPandasWithState(
            function, "k string, total long", "total long", "append", "NoTimeout", "totals"
        )

    return shaped


def vectorized(function) -> Shape:
    return lambda rows: rows.groupBy("k").applyVectorized(function, "k string, total long", "total long", name="totals")


def keyed_raises(key, frames, state):
    yield (key[0], inverse(0))


def vectorized_raises(batch):
    return ckpt.KeyResult(output=batch.rows.append_column("x", pa.array([inverse(0)])))


@F.udf(LongType())
def udf_raises(value):
    return inverse(0)


@F.pandas_udf(LongType())
def pandas_udf_raises(values: pd.Series) -> pd.Series:
    return values.map(lambda value: inverse(0))


def map_raises(batches):
    for batch in batches:
        yield batch.assign(v=inverse(0))


USERS = {
    "keyed": keyed(keyed_raises),
    "vectorized": vectorized(vectorized_raises),
    "udf": lambda rows: rows.withColumn("v", udf_raises("v")),
    "pandas udf": lambda rows: rows.withColumn("v", pandas_udf_raises("v")),
    "udf behind the operator": lambda rows: rows.groupBy("k").agg(v=ckpt.sum("v")).withColumn("v", udf_raises("v")),
    "mapInPandas": lambda rows: rows.transform(lambda frame: frame.mapInPandas(map_raises, "k string, v long")),
}


def refused(bench: Bench, shape: Shape) -> tuple[ckpt.CkptError, int]:
    """The error that ends the job, and its number of incarnations until then."""
    job, heard = bench.job(), Heard()
    job.addListener(heard)
    shape(job.source("in", bench.source())).to(bench.sink(), name="out")
    with pytest.raises(ckpt.CkptError) as failed:
        drain(job)
    return failed.value, len(heard.of("started"))


# in the gate: some here, and errors of the others in tests/runtime/test_query_failures.py
@pytest.mark.parametrize("shape", some(USERS, "keyed", "pandas udf", "udf behind the operator"))
def test_an_error_in_the_users_function_shows_their_lines_and_is_final(bench: Bench, shape: Shape) -> None:
    bench.put(("a", 1))
    error, incarnations = refused(bench, shape)
    assert error.condition == "CKPT_USER_FUNCTION_FAILED"
    assert "ZeroDivisionError" in error.what
    assert incarnations == 1
    shown = str(error.context["traceback"])
    assert f'File "{__file__}"' in shown
    assert "in inverse" in shown
    assert shown in str(error).replace("\n    ", "\n")
    assert not any(inside in shown for inside in ("/pyspark/", "pyspark.zip", "spark_ckpt/runtime/", "/connectors/"))


def test_a_failed_run_has_the_users_lines_in_its_error_and_in_the_log(bench: Bench, caplog) -> None:
    bench.put(("a", 1))
    job = bench.job()
    keyed(keyed_raises)(job.source("in", bench.source())).to(bench.sink(), name="out")
    run = job.start(availableNow=True)
    with pytest.raises(ckpt.CkptError):
        run.awaitTermination(120)
    found = run.exception()
    assert "in inverse" in str(found)
    assert "in inverse" in caplog.text


def wrong_tuple(key, frames, state):
    yield (key[0], "much" if key[0] == "b" else 1)


def wrong_frame(key, frames, state):
    yield pd.DataFrame({"k": [key[0]], "total": ["much" if key[0] == "b" else 1]})


def other_columns(key, frames, state):
    yield pd.DataFrame({"k": [key[0]], "sum": [1]})


def too_few_columns(key, frames, state):
    yield (key[0],)


def wrong_state(key, frames, state):
    state.update(("much" if key[0] == "b" else 1,))
    return []


def missing_column(key, frames, state):
    for frame in frames:
        yield (key[0], frame["absent"].sum())


def wrong_vectorized(batch):
    return ckpt.KeyResult(output=pd.DataFrame({"k": batch.keys["k"].to_pylist(), "total": "much"}))


@F.pandas_udf(LongType())
def wrong_pandas_udf(values: pd.Series) -> pd.Series:
    return values.map(str).replace("1", "much")


KEY_B = {"operator": "totals", "key": "('b',)"}
TOTAL_OF_B = KEY_B | {"column": "total"}
DETERMINISTIC: dict[str, tuple[Shape, str, dict[str, str]]] = {
    "tuple of the wrong type": (keyed(wrong_tuple), "OUTPUT_INVALID", TOTAL_OF_B),
    "frame of the wrong type": (keyed(wrong_frame), "OUTPUT_INVALID", TOTAL_OF_B),
    "frame with other columns": (keyed(other_columns), "OUTPUT_INVALID", {"operator": "totals"}),
    "too few columns": (keyed(too_few_columns), "OUTPUT_INVALID", {"operator": "totals"}),
    "state of the wrong type": (keyed(wrong_state), "OUTPUT_INVALID", TOTAL_OF_B),
    "a column that is not there": (keyed(missing_column), "USER_FUNCTION_FAILED", {"operator": "totals"}),
    "vectorised, wrong type": (
        vectorized(wrong_vectorized),
        "OUTPUT_INVALID",
        {"operator": "totals", "column": "total"},
    ),
    "pandas udf of the wrong type": (lambda rows: rows.withColumn("v", wrong_pandas_udf("v")), "OUTPUT_INVALID", {}),
    "overflow": (
        lambda rows: rows.withColumn("v", F.col("v") + F.lit(MOST)),
        "EXPRESSION_FAILED",
        {"spark": "ARITHMETIC_OVERFLOW", "expression": "__add__"},
    ),
    "cast": (
        lambda rows: rows.withColumn("v", F.col("k").cast("long")),
        "EXPRESSION_FAILED",
        {"spark": "CAST_INVALID_INPUT", "expression": "cast"},
    ),
    "cast in SQL": (
        lambda rows: rows.selectExpr("k", "CAST(k AS date) AS v"),
        "EXPRESSION_FAILED",
        {"spark": "CAST_INVALID_INPUT", "expression": "CAST(k AS date)"},
    ),
    "division by zero": (
        lambda rows: rows.withColumn("v", F.col("v") / F.lit(0)),
        "EXPRESSION_FAILED",
        {"spark": "DIVIDE_BY_ZERO", "expression": "__truediv__"},
    ),
    "cast behind the operator": (
        lambda rows: rows.groupBy("k").agg(v=ckpt.sum("v")).withColumn("v", F.col("k").cast("long")),
        "EXPRESSION_FAILED",
        {"spark": "CAST_INVALID_INPUT"},
    ),
    "the user's own": (
        lambda rows: rows.withColumn("v", F.raise_error(F.lit("no rate"))),
        "EXPRESSION_FAILED",
        {"spark": "USER_RAISED_EXCEPTION"},
    ),
    "sum": (
        lambda rows: rows.withColumn("v", F.lit(MOST)).groupBy("k").agg(name="totals", v=ckpt.sum("v")),
        "ARITHMETIC_OVERFLOW",
        KEY_B | {"column": "v"},
    ),
}


@pytest.mark.parametrize(
    "mistake",
    some(
        DETERMINISTIC,
        "tuple of the wrong type",
        "state of the wrong type",
        "vectorised, wrong type",
        "cast in SQL",
        "sum",
    ),
)
def test_an_error_that_the_same_rows_would_repeat_is_final_and_names_its_place(
    bench: Bench, mistake: tuple[Shape, str, dict[str, str]]
) -> None:
    shape, condition, context = mistake
    bench.put(("b", 1), ("b", 2))
    error, incarnations = refused(bench, shape)
    assert error.condition == f"CKPT_{condition}"
    assert not error.retriable
    assert incarnations == 1
    assert {name: error.context.get(name) for name in context} == context
    assert "SQLSTATE" not in str(error)


def once(flag: str, what: Callable[[], None]):
    """A UDF whose surroundings fail at its first call."""

    @F.udf(LongType())
    def udf(value):
        if not Path(flag).exists():
            Path(flag).touch()
            what()
        return value

    return udf


def kill_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def no_service() -> None:
    raise ConnectionRefusedError("no service")


def no_memory() -> None:
    raise MemoryError


@pytest.mark.parametrize(
    "what", [kill_worker, *(pytest.param(each, marks=pytest.mark.long) for each in (no_service, no_memory))]
)
def test_a_transient_error_is_retried(bench: Bench, what: Callable[[], None]) -> None:
    bench.put(("a", 7))
    flaky, heard = once(str(bench.folder / "flag"), what), Heard()
    job = bench.job()
    job.addListener(heard)
    job.source("in", bench.source()).withColumn("v", flaky("v")).to(bench.sink(), name="out")
    drain(job)
    assert bench.values() == [("a", 7)]
    assert len(heard.of("started")) == 2
