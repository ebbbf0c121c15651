from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_fixtures import MemoryStore, cache_of, snapshot, with_hash
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import DecimalType, LongType, NullType, StringType, StructField, StructType

from spark_ckpt.api.grouped import GroupedStream
from spark_ckpt.errors import GraphInvalid
from spark_ckpt.tasks.failures import OutputInvalid, UserFunctionFailed
from spark_ckpt.tasks.operators.operator import Binding, Clock
from spark_ckpt.tasks.operators.vectorized import KeyResult, VectorizedOperator
from spark_ckpt.tasks.rows import NO_TIMEOUT, arrow_schema
from spark_ckpt.tasks.state.group_state import KeyGroupState

ROW = StructType([StructField("k", StringType()), StructField("v", LongType())])
STATE = StructType([StructField("total", LongType()), StructField("rows", LongType())])
OUT = StructType([StructField("k", StringType()), StructField("total", LongType())])
PROCESSING = GroupStateTimeout.ProcessingTimeTimeout


class Harness:
    def __init__(self, func, folder, timeout=GroupStateTimeout.NoTimeout):
        operator = VectorizedOperator(func, ROW, ["k"], OUT, STATE, timeout)
        self.operator = operator.bind(Binding("totals"))
        self.store = MemoryStore()
        self.cache = cache_of(operator.schema, folder, self.store)
        self.group = KeyGroupState(operator.schema, self.cache, 0)

    def batch(self, rows, now=1000):
        table = None
        if rows is not None:
            columns = list(zip(*rows, strict=True)) or [()] * 2
            table = pa.table([pa.array(columns[0], pa.string()), pa.array(columns[1], pa.int64())], ROW.names)
            table = with_hash(table, ["k"])
        self.group = KeyGroupState.decode(self.group.encode(), self.operator.schema, self.cache, 0)
        tables = list(self.operator.process(table, self.group, Clock(now)))
        return [tuple(row.values()) for each in tables for row in each.to_pylist()]


def adding(batch):
    running = batch.cumulative_sum(batch.values("v"), batch.state_values("total"))
    rows = batch.cumulative_count(batch.state_values("rows"))
    return KeyResult(
        pa.table({"total": running, "k": batch.rows.column("k")}),
        pa.table({"rows": batch.last_per_key(rows), "total": batch.last_per_key(running)}),
    )


def adding_frames(batch):
    frame, state = batch.rows.to_pandas(), batch.state.to_pandas()
    totals = state["total"].fillna(0).astype("int64")[batch.key_index].reset_index(drop=True)
    running = frame.groupby("k", dropna=False)["v"].cumsum() + totals
    counts = frame.groupby("k", dropna=False, sort=False)["v"].size()
    rows = state["rows"].fillna(0).astype("int64") + counts.to_numpy()
    latest = batch.last_per_key(running)
    return KeyResult(pd.DataFrame({"k": frame["k"], "total": running}), pd.DataFrame({"total": latest, "rows": rows}))


@pytest.mark.parametrize("function", [adding, adding_frames])
@given(
    batches=st.lists(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(-9, 9)), max_size=9), max_size=4)
)
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_running_totals_are_those_of_a_loop_in_both_flavours(tmp_path_factory, function, batches):
    harness = Harness(function, tmp_path_factory.mktemp("levels"))
    totals: dict[object, int] = {}
    for epoch, rows in enumerate(batches, 1):
        expected = []
        for key, value in rows:
            totals[key] = totals.get(key, 0) + value
            expected.append((key, totals[key]))
        assert harness.batch(rows) == expected
        snapshot(harness.group, harness.store, epoch)


def test_the_batch_is_aligned(tmp_path):
    seen = []

    def look(batch):
        seen.append(batch)
        return KeyResult()

    harness = Harness(adding, tmp_path)
    harness.batch([("b", 1), ("b", 1)])
    harness.operator = VectorizedOperator(look, ROW, ["k"], OUT, STATE)
    harness.batch([("a", 1), ("b", 2), ("a", 3)])
    (batch,) = seen
    assert batch.keys.to_pydict() == {"k": ["a", "b"]}
    assert batch.key_index.tolist() == [0, 1, 0]
    assert batch.exists.tolist() == [False, True]
    assert batch.state.to_pydict() == {"total": [None, 2], "rows": [None, 2]}
    assert batch.rows.column_names == ["k", "v"]
    assert len(batch) == 2


def test_helpers_work_per_key_in_order_of_arrival(tmp_path):
    seen = []

    def look(batch):
        v = batch.values("v")
        seen.append(
            [
                batch.cumulative_min(v).tolist(),
                batch.cumulative_max(v, [0, 6]).tolist(),
                batch.first_per_key(v).tolist(),
                batch.sum_per_key(v).tolist(),
                batch.count_per_key().tolist(),
                batch.per_row([10, 20]).tolist(),
            ]
        )
        return KeyResult()

    Harness(look, tmp_path).batch([("a", 3), ("b", 5), ("a", 1), ("a", 2), ("b", 7)])
    assert seen == [[[3, 5, 1, 1, 5], [3, 6, 3, 3, 7], [3, 5], [6, 12], [3, 2], [10, 20, 10, 10, 20]]]


@pytest.mark.parametrize("kind", [DecimalType(10, 2), DecimalType(38, 18)])
def test_decimals_are_summed_with_a_default_for_null(tmp_path, kind):
    rows, state = (StructType().add("k", StringType()).add(name, kind) for name in ("v", "total"))

    def add(batch):
        running = batch.cumulative_sum(batch.values("v"), batch.state_values("total"))
        return KeyResult(
            pa.table({"k": batch.rows.column("k"), "total": running}), pa.table({"total": batch.last_per_key(running)})
        )

    operator = VectorizedOperator(add, rows, ["k"], state, StructType([state["total"]])).bind(Binding("totals"))
    group = KeyGroupState(operator.schema, cache_of(operator.schema, tmp_path, MemoryStore()), 0)
    columns = {"k": ["a", "b", "a"], "v": [Decimal("1.50"), None, Decimal("0.25")]}
    given = with_hash(pa.table(columns, arrow_schema(rows)), ["k"])
    for first in ("1.50", "3.25"):
        [table] = operator.process(given, group, Clock(1000))
        assert table.column("total").to_pylist() == [Decimal(first), 0, Decimal(first) + Decimal("0.25")]


def test_sums_of_narrow_numbers_and_of_masks_do_not_wrap(tmp_path):
    seen = []

    def look(batch):
        v = batch.values("v")
        for narrow in (v.astype(np.int8), v.astype(np.int32) << 24, v > 90):
            seen.append(batch.sum_per_key(narrow).tolist())
        seen.append(batch.cumulative_sum(v.astype(np.int8), np.array([100, 0], np.int8)).tolist())
        return KeyResult()

    Harness(look, tmp_path).batch([("a", 100), ("b", 5), ("a", 100), ("a", 90)])
    assert seen == [[290, 5], [290 << 24, 5 << 24], [2, 0], [200, 5, 300, 390]]


def constant(**parts):
    def func(batch):
        state = pa.table({"total": [7] * len(batch), "rows": [1] * len(batch)})
        return KeyResult(**({"state": state} | {name: part(batch) for name, part in parts.items()}))

    return func


GONE = "gone"


def totals_of(harness):
    seen = []
    looking = VectorizedOperator(lambda batch: (seen.append(batch), KeyResult())[1], ROW, ["k"], OUT, STATE)
    harness.operator = looking
    harness.batch([("a", 0), ("b", 0)])
    return [
        total if exists else GONE
        for total, exists in zip(seen[0].state.column("total").to_pylist(), seen[0].exists, strict=True)
    ]


def test_only_changed_keys_are_written(tmp_path):
    harness = Harness(constant(changed=lambda batch: [True, False]), tmp_path)
    harness.batch([("a", 1), ("b", 1)])
    assert harness.group.changed_rows == 1
    assert totals_of(harness) == [7, GONE]


def test_removed_keys_are_gone_and_an_unchanged_state_stays(tmp_path):
    harness = Harness(constant(), tmp_path)
    harness.batch([("a", 1), ("b", 1)])
    harness.operator = VectorizedOperator(lambda batch: KeyResult(remove=[True, False]), ROW, ["k"], OUT, STATE)
    harness.batch([("a", 1), ("b", 1)])
    assert totals_of(harness) == [GONE, 7]


def test_timeouts_call_the_function_without_rows(tmp_path):
    calls = []

    def func(batch):
        calls.append(
            (
                batch.timed_out,
                batch.keys.column("k").to_pylist(),
                len(batch.rows),
                batch.state_values("total").tolist(),
            )
        )
        state = pa.table({"total": [batch.processing_ms] * len(batch), "rows": [1] * len(batch)})
        if batch.timed_out:
            return KeyResult(remove=np.ones(len(batch), bool))
        return KeyResult(state=state, timeout_ms=[batch.processing_ms + 10, None][: len(batch)])

    harness = Harness(func, tmp_path, PROCESSING)
    harness.batch([("a", 1), ("b", 1)], now=1000)
    assert harness.group.earliest_timeout_ms == 1010
    harness.batch(None, now=1010)
    harness.batch(None, now=1011)
    harness.batch(None, now=2000)
    assert calls == [(False, ["a", "b"], 2, [0, 0]), (True, ["a"], 0, [1000])]
    assert harness.group.earliest_timeout_ms == NO_TIMEOUT
    assert totals_of(harness) == [GONE, 1000]


def test_a_moved_timeout_keeps_the_state(tmp_path):
    harness = Harness(constant(timeout_ms=lambda batch: [2000, 2000]), tmp_path, PROCESSING)
    harness.batch([("a", 1), ("b", 1)])
    harness.operator = VectorizedOperator(
        lambda batch: KeyResult(timeout_ms=[3000, -1]), ROW, ["k"], OUT, STATE, PROCESSING
    )
    harness.batch([("a", 1), ("b", 1)])
    assert harness.group.earliest_timeout_ms == 3000
    assert totals_of(harness) == [7, 7]


def test_a_timeout_that_is_left_as_it_was_is_due_again_in_each_batch(tmp_path):
    seen = []

    def waiting(batch):
        if not batch.timed_out:
            return adding_state(batch, timeout_ms=np.full(len(batch), 1500))
        seen.extend(batch.keys["k"].to_pylist())
        return KeyResult(timeout_ms=np.full(len(batch), 1500))

    def adding_state(batch, timeout_ms):
        return KeyResult(
            None, pa.table({"total": batch.sum_per_key(batch.values("v")), "rows": [1]}), timeout_ms=timeout_ms
        )

    harness = Harness(waiting, tmp_path, PROCESSING)
    harness.batch([("a", 1)])
    for epoch, now in enumerate((1600, 1700, 1800), 1):
        snapshot(harness.group, harness.store, epoch)
        harness.batch(None, now)
    assert seen == ["a"] * 3


def test_a_timeout_alone_makes_no_state(tmp_path):
    harness = Harness(lambda batch: KeyResult(timeout_ms=[2000] * len(batch)), tmp_path, PROCESSING)
    harness.batch([("a", 1), ("b", 1)])
    assert harness.group.earliest_timeout_ms == 2000
    assert totals_of(harness) == [GONE, GONE]


def test_keys_not_changed_keep_their_values_although_their_timeouts_move(tmp_path):
    harness = Harness(constant(), tmp_path, PROCESSING)
    harness.batch([("a", 1), ("b", 1)])

    def func(batch):
        state = pa.table({"total": [8, 9], "rows": [1, 1]})
        return KeyResult(state=state, changed=[True, False], timeout_ms=[2000, 3000])

    harness.operator = VectorizedOperator(func, ROW, ["k"], OUT, STATE, PROCESSING)
    harness.batch([("a", 1), ("b", 1)])
    assert totals_of(harness) == [8, 7]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"state": lambda batch: pa.table({"total": [1], "rows": [1]})}, "state has 1 row for 2 keys"),
        ({"state": lambda batch: pa.table({"total": [1, 1]})}, r"has columns \['total'\]"),
        ({"changed": lambda batch: [True]}, "changed is"),
        ({"changed": lambda batch: [1, 0]}, "changed is"),
        ({"remove": lambda batch: [True] * 3}, "remove is"),
        ({"timeout_ms": lambda batch: [1]}, "timeout_ms has shape"),
        ({"timeout_ms": lambda batch: [-1, 1000]}, "timeout_ms has a timeout"),
        ({"timeout_ms": lambda batch: [1000.5, None]}, r"timeout_ms has another value: .*1000\.5"),
        ({"timeout_ms": lambda batch: [1000, "soon"]}, "timeout_ms has another value"),
        ({"timeout_ms": lambda batch: pa.array([1, 2], pa.timestamp("us"))}, r"timeout_ms is of type timestamp\[us\]"),
        ({"state": lambda batch: None, "changed": lambda batch: [True, True]}, "without a state"),
        ({"output": lambda batch: [("a", 1)]}, "output is a list"),
        ({"state": lambda batch: {"total": [1, 1]}}, "state is a dict"),
        ({"output": lambda batch: pa.table({"k": ["a"]})}, r"has columns \['k'\]"),
        ({"output": lambda batch: pa.table({"k": ["a"], "total": ["x"]})}, "'total' of type string"),
    ],
)
def test_results_that_do_not_fit_say_what_is_wrong(tmp_path, parts, message):
    with pytest.raises(OutputInvalid, match=message):
        Harness(constant(**parts), tmp_path).batch([("a", 1), ("b", 1)])


def test_without_timeouts_a_result_may_say_that_no_key_has_one(tmp_path):
    harness = Harness(constant(timeout_ms=lambda batch: [None, -1]), tmp_path)
    harness.batch([("a", 1), ("b", 1)])
    assert totals_of(harness) == [7, 7]


def test_anything_but_a_result_is_refused(tmp_path):
    with pytest.raises(OutputInvalid, match="KeyResult"):
        Harness(lambda batch: batch.rows, tmp_path).batch([("a", 1)])


def test_an_error_in_the_function_names_the_operator(tmp_path):
    with pytest.raises(UserFunctionFailed, match="totals") as failure:
        Harness(lambda batch: batch.rows.column("absent"), tmp_path).batch([("a", 1)])
    assert isinstance(failure.value.__cause__, KeyError)


def test_an_error_in_the_function_shows_the_users_line(tmp_path):
    with pytest.raises(UserFunctionFailed) as failure:
        Harness(lambda batch: batch.rows.column("absent"), tmp_path).batch([("a", 1)])
    assert f'File "{__file__}"' in failure.value.context["traceback"]


@pytest.mark.parametrize(
    "state",
    [
        pa.table({"total": ["1", "much"], "rows": [1, 1]}),
        pd.DataFrame({"total": [1, "much"], "rows": [1, 1]}),
    ],
)
def test_state_that_does_not_fit_names_operator_key_and_column(tmp_path, state):
    with pytest.raises(OutputInvalid, match=r"'total'.*much") as failure:
        Harness(constant(state=lambda batch: state), tmp_path).batch([("a", 1), ("b", 1)])
    assert failure.value.context == {"operator": "totals", "column": "total", "key": "('b',)"}


def test_output_that_does_not_fit_names_operator_and_column(tmp_path):
    output = pd.DataFrame({"k": ["a", "b"], "total": [1, "much"]})
    with pytest.raises(OutputInvalid, match=r"output column 'total' .bigint. cannot hold 'much'") as failure:
        Harness(constant(output=lambda batch: output), tmp_path).batch([("a", 1)])
    assert failure.value.context == {"column": "total", "operator": "totals"}


@pytest.mark.parametrize("name", ["ckpt_note", "CKPT_key_hash"])
def test_a_column_that_the_operator_would_drop_is_refused(name):
    stream = SimpleNamespace(schema=StructType([*ROW, StructField(name, StringType())]))
    with pytest.raises(GraphInvalid, match=f"'{name}' uses the reserved prefix 'ckpt_'"):
        GroupedStream(stream, ("k",)).applyVectorized(adding, OUT, STATE)


def test_a_key_of_nulls_only_is_refused_before_a_task_compares_it():
    row = StructType([*ROW, StructField("nothing", NullType())])
    with pytest.raises(GraphInvalid, match="key column 'nothing' has type null"):
        VectorizedOperator(adding, row, ["k", "nothing"], OUT, STATE)
