"""Several inputs in one operator: every key's function has each input's rows by its name, and one state."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_fixtures import MemoryStore, cache_of, group_of, snapshot, with_hash
from pyspark import cloudpickle
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import ArrayType, StructType, TimestampType

from spark_ckpt.errors import CkptError, GraphInvalid
from spark_ckpt.plan.input_plan import TIME, GroupedInput, input_plan
from spark_ckpt.tasks.failures import UserFunctionFailed
from spark_ckpt.tasks.operators.key_frames import FramesByInput
from spark_ckpt.tasks.operators.keyed_function import KeyedFunction
from spark_ckpt.tasks.operators.named_inputs import PRESENT, TAG_PREFIX
from spark_ckpt.tasks.operators.operator import Binding, Clock
from spark_ckpt.tasks.operators.pandas_rows import PandasOptions
from spark_ckpt.tasks.operators.vectorized import KeyResult, VectorizedOperator
from spark_ckpt.tasks.rows import arrow_schema
from spark_ckpt.tasks.state.group_state import KeyGroupState


def struct(**columns):
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


ORDERS = struct(id="string", item="string", amount="long")
PAYMENTS = struct(paid="long", order_id="string")
BARE = struct(ref="string")
INPUTS = {
    "orders": GroupedInput(ORDERS, ("id",)),
    "payments": GroupedInput(PAYMENTS, ("order_id",)),
    "cancelled": GroupedInput(BARE, ("ref",)),
}
OUT = struct(id="string", due="long", cancelled="long")
STATE = struct(due="long", cancelled="long")
NONE, EVENT = GroupStateTimeout.NoTimeout, GroupStateTimeout.EventTimeTimeout
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
NOON_MS = int(NOON.timestamp() * 1000)


def at(second):
    return NOON + dt.timedelta(seconds=second)


class CoGrouped:
    """One key group under an operator with three inputs, through encode and decode on every batch."""

    def __init__(self, make, folder, timeout=NONE, timed=False, pickled=True):
        self.plan = input_plan(INPUTS)
        self.operator = make(self.plan, timeout).bind(Binding("settled", TIME if timed else None))
        if pickled:
            self.operator = cloudpickle.loads(cloudpickle.dumps(self.operator))
        self.store = MemoryStore()
        self.cache = cache_of(self.operator.schema, folder, self.store)
        self.group = KeyGroupState(self.operator.schema, self.cache, 0)
        self.schema = arrow_schema(self.plan.schema)
        if timed:
            self.schema = self.schema.append(pa.field(TIME, pa.timestamp("us", tz="UTC")))

    def batch(self, *rows, watermark=None, late=None):
        """`rows`: input, key, value of the input's own column, time."""
        table = with_hash(pa.Table.from_pylist([self.row(*each) for each in rows], self.schema), ["id"])
        self.group = KeyGroupState.decode(self.group.encode(), self.operator.schema, self.cache, 0)
        given = table if rows else None
        tables = list(self.operator.process(given, self.group, Clock(1000, watermark, late)))
        return [tuple(row.values()) for each in tables for row in each.to_pylist()]

    def row(self, name, key, value=None, time=None):
        return {"id": key, f"{TAG_PREFIX}{name}": value or {PRESENT: True}, TIME: time}


def order(key, amount, item="x", time=None):
    return ("orders", key, {"item": item, "amount": amount}, time)


def payment(key, paid, time=None):
    return ("payments", key, {"paid": paid}, time)


def cancel(key):
    return ("cancelled", key)


def by_key(func):
    return lambda plan, timeout: KeyedFunction(func, plan.schema, plan.keys, OUT, STATE, "append", timeout, plan.named)


def settle(key, frames, state):
    due, cancelled = state.get if state.exists else (0, 0)
    due += int(frames["orders"]["amount"].sum()) - int(frames["payments"]["paid"].sum())
    cancelled += len(frames["cancelled"])
    state.update((due, cancelled))
    yield key[0], due, cancelled


def at_once(func):
    return lambda plan, timeout: VectorizedOperator(
        func, plan.schema, plan.keys, OUT, STATE, timeout=timeout, inputs=plan.named
    )


def settle_at_once(plan, timeout):
    def settled(batch):
        orders, payments = batch["orders"], batch["payments"]
        due = batch.state_values("due").astype(np.int64)
        due = due + orders.sum_per_key(orders.values("amount")) - payments.sum_per_key(payments.values("paid"))
        cancelled = batch.state_values("cancelled").astype(np.int64) + batch["cancelled"].count_per_key()
        state = {"due": due, "cancelled": cancelled}
        return KeyResult(pa.table({"id": batch.keys.column("id"), **state}), pa.table(state))

    return at_once(settled)(plan, timeout)


BOTH = pytest.mark.parametrize("make", [by_key(settle), settle_at_once], ids=["by key", "at once"])


@BOTH
def test_rows_of_all_inputs_meet_one_state_of_their_key(tmp_path, make):
    harness = CoGrouped(make, tmp_path)
    first = harness.batch(order("a", 10), payment("b", 3), order("a", 5), cancel("a"))
    assert sorted(first) == [("a", 15, 1), ("b", -3, 0)]
    assert sorted(harness.batch(payment("a", 15), order("b", 3))) == [("a", 0, 1), ("b", 0, 0)]
    assert sorted(harness.batch(cancel("c"), cancel("c"))) == [("c", 0, 2)]


def test_a_frame_has_its_inputs_columns_and_rows_in_order_of_arrival(tmp_path):
    seen = {}

    def look(key, frames, state):
        seen[key[0]] = {name: frame.to_dict("list") for name, frame in frames.items()}
        return []

    operator = CoGrouped(by_key(look), tmp_path, pickled=False)
    operator.batch(order("a", 2, "y"), payment("a", 7), order("b", 1), order("a", 1, "x"), cancel("b"))
    assert seen["a"] == {
        "orders": {"id": ["a", "a"], "item": ["y", "x"], "amount": [2, 1]},
        "payments": {"paid": [7], "order_id": ["a"]},
        "cancelled": {"ref": []},
    }
    assert seen["b"]["cancelled"] == {"ref": ["b"]}
    assert seen["b"]["payments"] == {"paid": [], "order_id": []}


def test_a_column_whose_name_begins_with_a_dot_has_its_own_values():
    """Arrow reads such a name as a path: of the column without the dot."""
    plan = input_plan({"left": GroupedInput(struct(**{"k": "string", "v": "long", ".v": "long"}), ("k",)), **INPUTS})
    left = plan.named[0]
    rows = pa.Table.from_pylist([{"k": "a", left.tag: {"v": 1, ".v": 2}}, {"k": "b"}], arrow_schema(plan.schema))
    own, places = left.rows_of(rows)
    assert own.to_pylist() == [{"k": "a", "v": 1, ".v": 2}]
    assert places.tolist() == [0]


def test_changes_of_a_frame_are_invisible_to_other_keys(tmp_path):
    seen = []

    def spoil(key, frames, state):
        seen.append(key[0])
        assert list(frames["payments"]) == ["paid", "order_id"]
        assert frames["payments"]["paid"].sum() == (1 if key[0] == "c" else 0)
        frames["payments"]["more"] = 1
        frames["payments"].loc[0, "paid"] = 99
        assert frames["payments"].loc[0, "paid"] == 99, "both reads return the same frame"
        return []

    CoGrouped(by_key(spoil), tmp_path, pickled=False).batch(order("a", 1), order("b", 1), payment("c", 1))
    assert sorted(seen) == ["a", "b", "c"]


def test_a_batch_knows_the_rows_of_every_input_by_key(tmp_path):
    seen = []

    def look(batch):
        seen.append(batch)
        return KeyResult()

    operator = CoGrouped(at_once(look), tmp_path, pickled=False)
    operator.batch(payment("b", 3), order("a", 10), order("b", 5), order("a", 1))
    (batch,) = seen
    keys = batch.keys.column("id").to_pylist()
    orders = batch["orders"]
    assert [keys[i] for i in orders.key_index] == ["a", "b", "a"]
    assert orders.rows.column("amount").to_pylist() == [10, 5, 1]
    assert batch.rows.to_pydict() == {"id": ["b", "a", "b", "a"]}
    last = dict(zip(keys, batch["payments"].last_per_key(batch["payments"].values("paid")), strict=True))
    assert last == {"a": 0, "b": 3}
    assert dict(zip(keys, batch["orders"].count_per_key(), strict=True)) == {"a": 2, "b": 1}
    with pytest.raises(KeyError, match="there is no input 'order'; there are orders, payments, cancelled"):
        batch["order"]


def test_an_unknown_input_is_refused_with_the_names_of_the_inputs(tmp_path):
    harness = CoGrouped(by_key(lambda key, frames, state: frames["paymnts"]), tmp_path)
    with pytest.raises(UserFunctionFailed, match="no input 'paymnts'; there are orders, payments, cancelled"):
        harness.batch(order("a", 1))


def test_a_timed_out_key_is_called_with_empty_frames_of_all_inputs(tmp_path):
    def remind(key, frames, state):
        if state.hasTimedOut:
            state.remove()
            yield key[0], sum(map(len, frames.values())), len(frames)
        else:
            state.update((0, 0))
            state.setTimeoutTimestamp(NOON_MS + 5000)

    harness = CoGrouped(by_key(remind), tmp_path, EVENT, timed=True)
    assert harness.batch(order("a", 1, time=at(1)), watermark=NOON_MS, late=0) == []
    assert harness.batch(watermark=NOON_MS + 6000, late=NOON_MS) == [("a", 0, 3)]
    assert harness.batch(watermark=NOON_MS + 7000, late=NOON_MS + 6000) == []


@BOTH
def test_late_rows_of_any_timed_input_are_dropped_and_counted(tmp_path, make):
    harness = CoGrouped(make, tmp_path, EVENT, timed=True)
    rows = [order("a", 1, time=at(1)), payment("a", 10, time=at(3)), payment("a", 100, time=at(1)), cancel("a")]
    assert harness.batch(*rows, watermark=NOON_MS + 9000, late=NOON_MS + 2000) == [("a", -10, 1)]
    assert harness.group.late_rows == 2, "an input without event time is never late"


ROWS = st.one_of(
    st.builds(order, st.sampled_from("abc"), st.integers(0, 9)),
    st.builds(payment, st.sampled_from("abcd"), st.integers(0, 9)),
    st.builds(cancel, st.sampled_from("bd")),
)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(batches=st.lists(st.lists(ROWS, max_size=8), max_size=6), snapshots=st.sets(st.integers(0, 5)))
@BOTH
def test_the_final_value_of_each_key_equals_plain_pandas_for_any_batches(tmp_path_factory, make, batches, snapshots):
    harness = CoGrouped(make, tmp_path_factory.mktemp("cache"))
    found = {}
    for number, batch in enumerate(batches):
        found |= {key: values for key, *values in harness.batch(*batch)}
        if number in snapshots:
            snapshot(harness.group, harness.store, number + 1)

    rows = defaultdict(list)
    for batch in batches:
        for name, key, *more in batch:
            rows[name].append((key, *(value for value in (more[0] if more else {}).values())))
    orders = pd.DataFrame(rows["orders"], columns=["id", "item", "amount"]).groupby("id")["amount"].sum()
    paid = pd.DataFrame(rows["payments"], columns=["id", "paid"]).groupby("id")["paid"].sum()
    gone = pd.DataFrame(rows["cancelled"], columns=["id"]).groupby("id").size()
    parts = [orders.rename("amount"), paid.rename("paid"), gone.rename("gone")]
    whole = pd.concat([part.astype(float) for part in parts], axis=1).fillna(0)
    assert found == {key: [row.amount - row.paid, row.gone] for key, row in whole.iterrows()}


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"orders": INPUTS["orders"]}, "needs two inputs or more"),
        ({"a": INPUTS["orders"], "A": INPUTS["payments"]}, "'a' and 'A' have one name"),
        (
            {"a": INPUTS["orders"], "b": GroupedInput(PAYMENTS, ("paid",))},
            "key 'id' of input 'a' is string, 'paid' of 'b' is bigint",
        ),
        (
            {"a": INPUTS["orders"], "b": GroupedInput(PAYMENTS, ("order_id", "paid"))},
            "'a' is grouped by id, 'b' by order_id, paid",
        ),
        ({"a": INPUTS["orders"], "b": GroupedInput(PAYMENTS, ("paid", "paid"))}, "by one column twice"),
        ({"a": INPUTS["orders"], "no name": INPUTS["payments"]}, "'no name' is no input name"),
        (
            {"a": INPUTS["orders"], "b": GroupedInput(struct(k="string", ckpt_time="long"), ("k",))},
            "column 'ckpt_time' of input 'b' uses the reserved prefix",
        ),
    ],
)
def test_inputs_that_do_not_fit_together_are_refused(inputs, said):
    with pytest.raises(CkptError, match=said):
        input_plan(inputs)


def test_the_key_of_nested_type_is_refused():
    windows = GroupedInput(struct(w=struct(start="timestamp", end="timestamp"), v="long"), ("w",))
    plan = input_plan({"a": windows, "b": windows})
    with pytest.raises(GraphInvalid, match="key column 'w' has type struct"):
        by_key(settle)(plan, NONE)


def test_an_input_without_rows_has_a_frame_for_any_columns(tmp_path):
    kinds = {
        "s": "string",
        "n": "long",
        "d": "double",
        "b": "boolean",
        "at": "timestamp",
        "day": "date",
        "raw": "binary",
    }
    many = struct(k="string", **kinds).add("list", ArrayType(TimestampType())).add("one", struct(at="timestamp"))
    plan = input_plan({"orders": INPUTS["orders"], "many": GroupedInput(many, ("k",))})
    seen = []
    operator = by_key(lambda key, frames, state: seen.append(frames["many"]) or [])(plan, NONE)
    options = PandasOptions(timezone="America/New_York")
    operator = operator.bind(Binding("op", options=options))
    group = group_of(operator.schema, tmp_path)
    rows = [{"id": "a", f"{TAG_PREFIX}orders": {"item": "x", "amount": 1}}]
    list(operator.process(with_hash(pa.Table.from_pylist(rows, arrow_schema(plan.schema)), ["id"]), group, Clock(1)))
    timed_out = FramesByInput(plan.named).of_none(options)(0)
    assert [(list(frame), len(frame)) for frame in (*seen, timed_out["many"])] == [(many.names, 0)] * 2
    assert timed_out["many"].dtypes.equals(seen[0].dtypes)
    assert seen[0]["at"].dtype.kind == "M"
