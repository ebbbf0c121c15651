import datetime as dt
import gc
import math
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from operator_fixtures import MemoryStore, cache_of, snapshot, with_hash
from pyspark import cloudpickle
from pyspark.errors import PySparkRuntimeError, PySparkTypeError, PySparkValueError
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.tasks.failures import OutputInvalid, UserFunctionFailed
from spark_ckpt.tasks.operators.keyed_function import KeyedFunction
from spark_ckpt.tasks.operators.operator import Binding, Clock
from spark_ckpt.tasks.operators.pandas_rows import PandasOptions
from spark_ckpt.tasks.state.group_state import KeyGroupState

ROW = StructType([StructField("k", StringType()), StructField("v", LongType()), StructField("at", TimestampType())])
STATE = StructType([StructField("total", LongType()), StructField("seen", TimestampType())])
OUT = StructType([StructField("k", StringType()), StructField("total", LongType())])
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
NOON_MS = int(NOON.timestamp() * 1000)
NONE, PROCESSING, EVENT = (
    GroupStateTimeout.NoTimeout,
    GroupStateTimeout.ProcessingTimeTimeout,
    GroupStateTimeout.EventTimeTimeout,
)


class Harness:
    """One key group under an operator, through encode and decode on every batch."""

    def __init__(self, func, folder, timeout=NONE, event_time=None, keys=("k",), options=None):
        operator = KeyedFunction(func, ROW, keys, OUT, STATE, "append", timeout)
        self.operator = operator.bind(Binding("totals", event_time, options or PandasOptions()))
        self.store = MemoryStore()
        self.cache = cache_of(operator.schema, folder, self.store)
        self.group = KeyGroupState(operator.schema, self.cache, 0)
        self.keys = keys
        self.late = None

    def batch(self, rows, now=1000, watermark=None):
        table = None
        if rows is not None:
            columns = list(zip(*rows, strict=True)) or [()] * 3
            types = [pa.string(), pa.int64(), pa.timestamp("us", tz="UTC")]
            arrays = [pa.array(list(each), kind) for each, kind in zip(columns, types, strict=True)]
            table = with_hash(pa.table(arrays, ROW.names), list(self.keys))
        group = KeyGroupState.decode(self.group.encode(), self.operator.schema, self.cache, 0)
        late = watermark if self.late is None else self.late
        tables = list(self.operator.process(table, group, Clock(now, watermark, late)))
        self.group, self.late = group, watermark
        return [tuple(row.values()) for each in tables for row in each.to_pylist()]


def row(key, value=1, second=0):
    return (key, value, NOON + dt.timedelta(seconds=second))


def adding(key, frames, state):
    total, _ = state.getOption or (0, None)
    for frame in frames:
        total += int(frame["v"].sum())
    state.update((total, NOON.replace(tzinfo=None)))
    yield (key[0], total)


def adding_with_frames(key, frames, state):
    ((name, total),) = adding(key, frames, state)
    yield pd.DataFrame({"k": [name], "total": [total]})


@pytest.mark.parametrize("func", [adding, adding_with_frames])
def test_each_key_meets_its_own_rows_and_state(tmp_path, func):
    harness = Harness(func, tmp_path)
    assert harness.batch([row("a", 1), row("b", 10), row("a", 2)]) == [("a", 3), ("b", 10)]
    snapshot(harness.group, harness.store, 1)
    assert harness.batch([row("b", 5), row(None, 7)]) == [("b", 15), (None, 7)]
    assert harness.batch([row("a", 1), row(None, 1)]) == [("a", 4), (None, 8)]


def test_the_function_gets_sparks_key_frame_and_state(tmp_path):
    seen = []

    def look(key, frames, state):
        frames = list(frames)
        seen.append((key, frames, state, state.exists, state.getOption, state.hasTimedOut))
        return []

    berlin = PandasOptions(timezone="Europe/Berlin")
    Harness(look, tmp_path, options=berlin).batch([row("a", 2**60 + 1), row("b", None), row("a", 3, second=7)])
    (key, (frame,), state, *facts), (_, (nulls,), *_) = seen
    assert key == ("a",)
    assert frame.columns.tolist() == ["k", "v", "at"]
    assert frame.index.tolist() == [0, 1]
    assert frame["v"].tolist() == [2**60 + 1, 3]
    assert frame["at"].tolist() == [pd.Timestamp("2024-05-01 14:00:00"), pd.Timestamp("2024-05-01 14:00:07")]
    assert isinstance(state, GroupState)
    assert facts == [False, None, False]
    assert nulls["v"].dtype == np.float64
    assert math.isnan(nulls["v"][0])


def test_a_key_keeps_its_own_state_if_a_function_uses_one_list_for_all_keys(tmp_path):
    scratch = []

    def listing(key, frames, state):
        scratch[:] = state.get[0] if state.exists else []
        for frame in frames:
            scratch.extend(frame["v"].tolist())
        state.update((scratch,))
        yield key[0], len(scratch)

    state = StructType([StructField("values", ArrayType(LongType()))])
    operator = KeyedFunction(listing, ROW, ["k"], OUT, state, "append", NONE).bind(Binding("listing"))
    group = KeyGroupState(operator.schema, cache_of(operator.schema, tmp_path), 0)
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    for _ in range(2):
        rows = [{"k": name, "v": value, "at": NOON} for name, value in (("a", 1), ("b", 2), ("b", 3))]
        list(operator.process(with_hash(pa.Table.from_pylist(rows, schema), ["k"]), group, Clock(1000)))
    found = group.capture_full(1).table
    assert dict(zip(found["k"].to_pylist(), found["values"].to_pylist(), strict=True)) == {
        "a": [1, 1],
        "b": [2, 3, 2, 3],
    }


def test_rows_of_a_key_arrive_in_order(tmp_path):
    def listing(key, frames, state):
        yield from ((key[0], v) for frame in frames for v in frame["v"])

    rows = [row("ab"[i % 2], i) for i in range(10)]
    assert Harness(listing, tmp_path).batch(rows) == [("a", i) for i in range(0, 10, 2)] + [
        ("b", i) for i in range(1, 10, 2)
    ]


def test_state_values_come_back_as_the_python_objects_that_were_put(tmp_path):
    got = []

    def remember(key, frames, state):
        got.append(state.getOption)
        state.update((np.int64(5), pd.Timestamp("2024-05-01 12:00:00")))
        return []

    harness = Harness(remember, tmp_path)
    harness.batch([row("a")])
    harness.batch([row("a")])
    assert got == [None, (5, dt.datetime(2024, 5, 1, 12))]


def test_state_of_nulls_exists(tmp_path):
    got = []

    def nulls(key, frames, state):
        got.append((state.exists, state.getOption))
        state.update((None, None))
        return []

    harness = Harness(nulls, tmp_path)
    harness.batch([row("a")])
    harness.batch([row("a")])
    assert got == [(False, None), (True, (None, None))]


def test_removed_state_is_gone_and_may_come_again(tmp_path):
    def toggle(key, frames, state):
        yield (key[0], int(state.exists))
        if state.exists:
            state.remove()
        else:
            state.update((1, None))

    harness = Harness(toggle, tmp_path)
    shown = []
    for epoch in range(1, 6):
        shown += harness.batch([row("a")])
        snapshot(harness.group, harness.store, epoch)
    assert shown == [("a", 0), ("a", 1), ("a", 0), ("a", 1), ("a", 0)]


def test_a_function_that_changes_nothing_writes_nothing(tmp_path):
    harness = Harness(lambda key, frames, state: [], tmp_path)
    harness.batch([row("a")])
    assert harness.group.changed_rows == 0


def test_removing_what_was_never_there_writes_nothing(tmp_path):
    def remove(key, frames, state):
        state.remove()
        return []

    harness = Harness(remove, tmp_path)
    harness.batch([row("a")])
    assert harness.group.changed_rows == 0


def waiting(key, frames, state):
    """Sets a timeout on rows; on timeout emits the state and removes it."""
    if state.hasTimedOut:
        (frame,) = frames
        assert frame.empty
        assert frame.columns.tolist() == ROW.names
        yield ("late " + key[0], state.get[0])
        state.remove()
    else:
        total = sum(int(frame["v"].sum()) for frame in frames)
        state.update((total, None))
        state.setTimeoutDuration(100)


def test_a_processing_time_timeout_calls_the_key_once_strictly_after_its_time(tmp_path):
    harness = Harness(waiting, tmp_path, PROCESSING)
    assert harness.batch([row("a", 5), row("b", 6)], now=1000) == []
    snapshot(harness.group, harness.store, 1)
    assert harness.group.earliest_timeout_ms == 1100
    assert harness.batch([row("b", 7)], now=1050) == []
    assert harness.batch(None, now=1100) == []
    assert harness.batch(None, now=1101) == [("late a", 5)]
    assert harness.batch(None, now=1140) == []
    assert harness.batch(None, now=1151) == [("late b", 7)]
    assert harness.batch(None, now=9999) == []


def test_a_call_that_sets_no_timeout_clears_it(tmp_path):
    def once(key, frames, state):
        if state.hasTimedOut:
            yield (key[0], -1)
        elif not state.exists:
            state.update((0, None))
            state.setTimeoutDuration(100)

    harness = Harness(once, tmp_path, PROCESSING)
    harness.batch([row("a"), row("b")], now=1000)
    harness.batch([row("a")], now=1010)
    assert harness.batch(None, now=2000) == [("b", -1)]
    assert harness.batch(None, now=3000) == [], "a timed-out call that sets none clears it, too"


def test_a_timeout_without_state_fires(tmp_path):
    def stateless(key, frames, state):
        if state.hasTimedOut:
            yield (key[0], int(state.exists))
        else:
            state.setTimeoutDuration(5)

    harness = Harness(stateless, tmp_path, PROCESSING)
    harness.batch([row("a")], now=1000)
    snapshot(harness.group, harness.store, 1)
    assert harness.batch(None, now=1006) == [("a", 0)]
    assert harness.batch(None, now=1012) == []


def test_a_key_with_rows_and_a_passed_timeout_is_called_for_its_rows_only(tmp_path):
    harness = Harness(waiting, tmp_path, PROCESSING)
    harness.batch([row("a", 5)], now=1000)
    assert harness.batch([row("a", 6)], now=5000) == []


def test_an_event_time_timeout_follows_the_watermark(tmp_path):
    def until(key, frames, state):
        if state.hasTimedOut:
            yield (key[0], state.getCurrentWatermarkMs())
            state.remove()
        else:
            state.update((1, None))
            state.setTimeoutTimestamp(NOON_MS + 10_000)

    harness = Harness(until, tmp_path, EVENT, "at")
    harness.batch([row("a")], now=NOON_MS * 2, watermark=0)
    assert harness.batch(None, now=NOON_MS * 2, watermark=NOON_MS + 10_000) == []
    assert harness.batch(None, now=NOON_MS * 2, watermark=NOON_MS + 10_001) == [("a", NOON_MS + 10_001)]


LATE = [row("a", 1, 5), row("a", 10, 6), row("b", 100, 4), ("c", 1000, None)]


def test_rows_at_or_before_the_watermark_are_dropped_and_counted_with_event_time_timeout_only(tmp_path):
    harness = Harness(adding, tmp_path / "event", EVENT, "at")
    assert harness.batch(LATE, watermark=NOON_MS + 5000) == [("a", 10), ("c", 1000)]
    assert harness.group.late_rows == 2
    harness = Harness(adding, tmp_path / "none", NONE, "at")
    assert harness.batch(LATE, watermark=NOON_MS + 5000) == [("a", 11), ("b", 100), ("c", 1000)]
    assert harness.group.late_rows == 0


def test_lateness_is_judged_by_the_watermark_of_the_batch_before_as_in_spark(tmp_path):
    harness = Harness(adding, tmp_path, EVENT, "at")
    assert harness.batch([row("z", 1, 60)], watermark=NOON_MS + 4000) == [("z", 1)]
    assert harness.batch(LATE, watermark=NOON_MS + 9000) == [("a", 11), ("c", 1000)]
    assert harness.batch(LATE, watermark=NOON_MS + 9000) == [("c", 2000)]


def failing_with(action):
    def func(key, frames, state):
        action(state)
        return []

    return func


@pytest.mark.parametrize(
    ("action", "cause"),
    [
        (lambda state: state.get, PySparkValueError),
        (lambda state: state.update(None), PySparkTypeError),
        (lambda state: state.setTimeoutDuration(5), PySparkRuntimeError),
        (lambda state: state.getCurrentWatermarkMs(), PySparkRuntimeError),
        (lambda state: 1 / 0, ZeroDivisionError),
    ],
)
def test_an_error_in_the_function_names_operator_and_key_and_keeps_its_cause(tmp_path, action, cause):
    with pytest.raises(UserFunctionFailed) as failure:
        Harness(failing_with(action), tmp_path).batch([row("the key")])
    assert type(failure.value.__cause__) is cause
    assert "totals" in str(failure.value)
    assert "('the key',)" in str(failure.value)


def test_a_very_long_key_is_cut_in_the_message(tmp_path):
    with pytest.raises(UserFunctionFailed) as failure:
        Harness(failing_with(lambda state: 1 / 0), tmp_path).batch([row("x" * 10_000)])
    assert len(str(failure.value)) < 1000


@pytest.mark.parametrize("result", [pd.DataFrame({"k": ["a"], "total": [1]}), None, 5])
def test_a_result_that_is_no_iterable_of_rows_is_refused(tmp_path, result):
    with pytest.raises(OutputInvalid, match="the function returned"):
        Harness(lambda key, frames, state: result, tmp_path).batch([row("a")])


@pytest.mark.parametrize("value", [(1,), (1, None, 2), ("x", None)])
def test_a_state_that_does_not_fit_its_schema_is_refused(tmp_path, value):
    with pytest.raises(OutputInvalid, match="state"):
        Harness(failing_with(lambda state: state.update(value)), tmp_path).batch([row("a")])


def test_an_error_in_the_function_shows_only_the_users_lines(tmp_path):
    with pytest.raises(UserFunctionFailed) as failure:
        Harness(failing_with(lambda state: 1 / 0), tmp_path).batch([row("a")])
    shown = failure.value.context["traceback"]
    assert f'File "{__file__}"' in shown
    assert "1 / 0" in shown
    assert "keyed_function.py" not in shown.replace(__file__, "")


@pytest.mark.parametrize("error", [ConnectionRefusedError("no service"), TimeoutError(), MemoryError()])
def test_transient_errors_are_retried_and_other_errors_are_final(tmp_path, error):
    def raising(_):
        raise error

    with pytest.raises(UserFunctionFailed) as failure:
        Harness(failing_with(raising), tmp_path).batch([row("a")])
    assert failure.value.retriable
    with pytest.raises(UserFunctionFailed) as failure:
        Harness(failing_with(lambda state: {}["absent"]), tmp_path).batch([row("a")])
    assert not failure.value.retriable


def yielding(of_b):
    """Good rows, except for key b: `of_b(good row)`."""

    def function(key, frames, state):
        good = (key[0], 1)
        yield of_b(*good) if key[0] == "b" else pd.DataFrame({"k": [key[0]], "total": [1]})

    return function


@pytest.mark.parametrize(
    ("of_b", "message"),
    [
        (lambda k, total: (k, "much"), "output column 'total' .bigint. cannot hold 'much'"),
        (lambda k, total: (k, 2**63), "output column 'total' .bigint. cannot hold 9223372036854775808"),
        (lambda k, total: (5, total), "output column 'k' .string. cannot hold 5"),
        (
            lambda k, total: pd.DataFrame({"k": [k], "total": ["much"]}),
            "output column 'total' .bigint. cannot hold 'much'",
        ),
        (lambda k, total: (k,), "1 value .str."),
    ],
)
def test_output_of_the_wrong_type_names_operator_key_and_column_and_no_other_value(tmp_path, of_b, message):
    with pytest.raises(OutputInvalid, match=message) as failure:
        Harness(yielding(of_b), tmp_path).batch([row("a"), row("b"), row("c"), row("secret")])
    assert failure.value.context["operator"] == "totals"
    assert failure.value.context["key"] == "('b',)"
    assert failure.value.context.get("column", "total") in ("total", "k")
    assert not failure.value.retriable
    assert "secret" not in str(failure.value)


def test_a_frame_without_a_declared_column_names_it(tmp_path):
    with pytest.raises(OutputInvalid, match="lack column 'total'") as failure:
        Harness(yielding(lambda k, total: pd.DataFrame({"k": [k], "sum": [1]})), tmp_path).batch([row("b")])
    assert failure.value.context == {"operator": "totals", "key": "('b',)"}


@pytest.mark.parametrize(("value", "column"), [(("much", None), "total"), ((1, "now"), "seen"), ((1,), None)])
def test_state_that_does_not_fit_names_operator_key_and_column(tmp_path, value, column):
    def function(key, frames, state):
        state.update(value if key[0] == "b" else (1, None))
        return []

    with pytest.raises(OutputInvalid) as failure:
        Harness(function, tmp_path).batch([row("a"), row("b"), row("c")])
    assert failure.value.context["operator"] == "totals"
    assert failure.value.context["key"] == "('b',)"
    assert failure.value.context.get("column") == column


def test_a_row_that_does_not_fit_names_its_own_key(tmp_path):
    """Rows are converted in pieces of fifty thousand, and where rows and frames take turns."""

    def function(key, frames, state):
        if key[0] == "many":
            yield from ((key[0], n) for n in range(60_000))
        elif key[0] == "frame":
            yield pd.DataFrame({"k": ["frame"], "total": [1]})
        else:
            yield (key[0], "much" if key[0] == "b" else 1)

    for keys in (["many", "a", "b", "c"], ["a", "frame", "b", "frame2"]):
        with pytest.raises(OutputInvalid, match="much") as failure:
            Harness(function, tmp_path / keys[0]).batch([row(key) for key in keys])
        assert failure.value.context["key"] == "('b',)"


def test_numbers_in_a_key_are_shown_as_numbers(tmp_path):
    with pytest.raises(UserFunctionFailed) as failure:
        Harness(failing_with(lambda state: 1 / 0), tmp_path, keys=("k", "v")).batch([row("a", 7)])
    assert failure.value.context["key"] == "('a', 7)"


def test_a_failed_batch_leaves_the_encoded_state_as_it_was(tmp_path):
    harness = Harness(adding, tmp_path)
    harness.batch([row("a", 1)])
    before = harness.group.encode()
    broken = Harness(failing_with(lambda state: 1 / 0), tmp_path)
    broken.group = harness.group
    with pytest.raises(UserFunctionFailed):
        broken.batch([row("a", 1), row("b", 1)])
    assert harness.group.encode() == before


def test_the_garbage_collector_is_as_before_once_the_function_returned_or_failed(tmp_path):
    before = gc.get_threshold()
    Harness(adding, tmp_path).batch([row("a", 1)])
    assert gc.get_threshold() == before
    with pytest.raises(UserFunctionFailed):
        Harness(failing_with(lambda state: 1 / 0), tmp_path).batch([row("a", 1)])
    assert gc.get_threshold() == before


def test_several_key_columns(tmp_path):
    def both(key, frames, state):
        assert type(key[1]) is np.int64
        yield (f"{key[0]}{key[1]}", sum(len(frame) for frame in frames))

    rows = [row("a", 1), row("a", 2), row("b", 1), row("a", 1)]
    assert Harness(both, tmp_path, keys=("k", "v"))  # v is a key and must not be a state column
    assert Harness(both, tmp_path, keys=("k", "v")).batch(rows) == [("a1", 2), ("a2", 1), ("b1", 1)]


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(GraphInvalid, match="Sometimes"):
        KeyedFunction(adding, ROW, ["k"], OUT, STATE, "append", "Sometimes")
    with pytest.raises(GraphInvalid, match="watermark"):
        KeyedFunction(adding, ROW, ["k"], OUT, STATE, "append", EVENT).bind(Binding("totals"))


def test_the_operator_travels_to_executors(tmp_path):
    harness = Harness(adding, tmp_path)
    harness.operator = pickle.loads(cloudpickle.dumps(harness.operator))
    assert harness.batch([row("a", 1)]) == [("a", 1)]


def test_pandas_does_not_warn_when_the_function_changes_its_frame(tmp_path):
    def changing(key, frames, state):
        for frame in frames:
            frame["twice"] = frame["v"] * 2
            frame.loc[0, "v"] = 0
            yield (key[0], int(frame["twice"].sum()))

    assert Harness(changing, tmp_path).batch([row("a", 1), row("b", 2)]) == [("a", 2), ("b", 4)]
