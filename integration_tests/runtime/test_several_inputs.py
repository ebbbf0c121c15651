"""Several streams as the named inputs of one operator: rows meet under one key, and its state is in every epoch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState
from runtime_kit import Bench, drain, manifest_of

import spark_ckpt as ckpt
from spark_ckpt import failpoints
from spark_ckpt.cli.app import exit_code
from spark_ckpt.errors import GraphInvalid, StateSchemaChanged

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder


def settle(
    key: tuple[str], frames: Mapping[str, pd.DataFrame], state: GroupState
) -> Iterator[tuple[str, int, int, int]]:
    due, orders, payments = state.get if state.exists else (0, 0, 0)
    due += int(frames["orders"]["v"].sum()) - int(frames["payments"]["paid"].sum())
    orders, payments = orders + len(frames["orders"]), payments + len(frames["payments"])
    state.update((due, orders, payments))
    yield key[0], due, orders, payments


STATE = "due long, orders int, payments int"


def settled(bench: Bench, state: str = STATE, name: str = "settled", **settings: object) -> ckpt.Job:
    """`orders` (k string, v long) and `payments` (ref string, paid long)."""
    job = bench.job(**settings)
    orders = job.source("orders", bench.source("orders"))
    payments = job.source("payments", bench.source("payments")).selectExpr("v AS paid", "k AS ref")
    inputs = {"orders": orders.groupBy("k"), "payments": payments.groupBy("ref")}
    meeting = job.cogroup(inputs).applyInPandasWithState(
        settle, "k string, due long, orders int, payments int", state, "append", "NoTimeout", name=name
    )
    meeting.to(bench.sink(), name="out")
    return job


def last(bench: Bench) -> dict[object, tuple[object, ...]]:
    """The last row of each key: a row has the number of rows before it."""
    words = sorted(bench.rows(), key=lambda row: row["orders"] + row["payments"])
    return {row["k"]: (row["due"], row["orders"], row["payments"]) for row in words}


@pytest.mark.long  # in the gate: tests/runtime/test_co_groups.py, and joins of two streams, test_stream_joins.py
def test_rows_of_two_inputs_meet_one_state_also_after_a_stop(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.put(("a", 10), ("b", 20), (None, 3), into="orders")
    drain(settled(bench))
    bench.put(("a", 4), ("c", 30), (None, 1), into="payments")
    bench.put(("a", 5), into="orders")
    failpoints.arm("EPOCH_COMMITTING:raise")
    try:
        with pytest.raises((ckpt.CkptError, failpoints.FailpointHit)):
            drain(settled(bench))
    finally:
        failpoints.arm("")
    run = drain(settled(bench))

    expected = {"a": (11, 2, 1), "b": (20, 1, 0), "c": (-30, 0, 1), None: (2, 1, 1)}
    assert last(bench) == expected
    store = str(bench.folder / "store")
    capsys.readouterr()
    assert exit_code(["state", store, "settled", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["k"]: (row["due"], row["orders"], row["payments"]) for row in rows} == expected
    assert exit_code(["rescale", store, "settled", "--key-groups", "7"]) == 0
    assert exit_code(["verify", store]) == 0
    bench.put(("c", 30), into="orders")

    run = drain(settled(bench, key_groups=7))

    assert last(bench) == expected | {"c": (0, 1, 1)}
    assert manifest_of(bench, run.epochs()[-1].epoch)["operators"]["settled"]["key_schema"] == "k string"
    with pytest.raises(StateSchemaChanged, match="operator 'settled' was written with"):
        settled(bench, state="due string, orders int, payments int", key_groups=7).start(availableNow=True)
    with pytest.raises(GraphInvalid, match="state of operator 'settled', which the job no longer has"):
        settled(bench, name="other", key_groups=7).start(availableNow=True)


@pytest.mark.long  # in the gate: tests/runtime/test_co_groups.py
def test_inputs_come_from_anywhere_in_the_graph(bench: Bench) -> None:
    """An operator's output, an edge, one source twice; records that cannot be parsed are removed before."""
    job = bench.job()
    texts = job.source("texts", bench.source("texts")).selectExpr("k", "if(v = 2, 'broken', '{\"x\": 1}') AS text")
    parsed = texts.parse("text", "x long", on_error="drop").select("k", F.col("text.x").alias("x"))
    rows = job.source("in", bench.source())
    counted = rows.groupBy("k").agg("each row", name="counted", n=ckpt.count())
    inputs = {
        "parsed": parsed.groupBy("k"),
        "counted": counted.groupBy("k"),
        "late": rows.through("late").groupBy(F.expr("upper(k)").alias("key")),
    }

    def heard(key, frames, state):
        before = state.get if state.exists else (0, 0, 0)
        now = tuple(old + len(frame) for old, frame in zip(before, frames.values(), strict=True))
        state.update(now)
        yield key[0], *now

    counts = "parsed int, counted int, late int"
    heard = job.cogroup(inputs).applyInPandasWithState(
        heard, f"k string, {counts}", counts, "append", "NoTimeout", name="heard"
    )
    heard.to(bench.sink(), name="out")
    bench.put(("A", 1), ("A", 2), into="texts")
    bench.put(("A", 1), ("a", 1))

    run = drain(job)

    words = sorted(bench.rows(), key=lambda row: row["parsed"] + row["counted"] + row["late"])
    final = {row["k"]: (row["parsed"], row["counted"], row["late"]) for row in words}
    assert final == {"A": (1, 1, 2), "a": (0, 1, 0)}
    assert run.lastProgress["totals"]["rejected"] == 1


def test_the_explanation_of_a_job_names_every_input(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    settled(bench).explain()
    assert [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()] == [
        "job job",
        "└── sink 'out' (delta)",
        "    └── operator 'settled' by k",
        "        ├── input 'orders' by k",
        "        │   └── source 'orders' (sparks files)",
        "        └── input 'payments' by ref",
        "            └── selectExpr",
        "                └── source 'payments' (sparks files)",
    ]


def test_an_invalid_co_group_is_refused_on_its_line(bench: Bench) -> None:
    job = bench.job()
    rows = job.source("in", bench.source())
    with pytest.raises(GraphInvalid, match="key 'k' of input 'a' is string, 'v' of 'b' is bigint"):
        job.cogroup({"a": rows.groupBy("k"), "b": rows.groupBy("v")})
    with pytest.raises(GraphInvalid, match="input 'b' is a Stream"):
        job.cogroup({"a": rows.groupBy("k"), "b": rows})
    with pytest.raises(GraphInvalid, match="a grouped stream has no 'cogroup'"):
        rows.groupBy("k").cogroup(rows.groupBy("k"))
    with pytest.raises(GraphInvalid, match="a co-group has no 'agg'"):
        job.cogroup({"a": rows.groupBy("k"), "b": rows.groupBy("k")}).agg(n=ckpt.count())
    counted = rows.groupBy("k").agg("each row", name="counted", n=ckpt.count())
    twice = job.cogroup({"a": counted.groupBy("k"), "b": counted.groupBy("k")})
    with pytest.raises(GraphInvalid, match="cannot read two streams that part after operator 'counted'"):
        twice.applyInPandasWithState(settle, "k string", STATE, "append", "NoTimeout")
