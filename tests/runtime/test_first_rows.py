"""Deduplication against a model of Spark's: the first row of a key, late rows dropped, keys forgotten by the watermark."""

import datetime as dt
import math

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_fixtures import MemoryStore, cache_of, snapshot, with_hash
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from spark_ckpt.tasks.operators.first_rows import STATE, FirstRows
from spark_ckpt.tasks.operators.operator import Binding, Clock
from spark_ckpt.tasks.operators.vectorized import VectorizedOperator
from spark_ckpt.tasks.operators.window_keys import Closing
from spark_ckpt.tasks.rows import NO_TIMEOUT, arrow_schema
from spark_ckpt.tasks.state.group_state import KeyGroupState

ROW = StructType([StructField("k", StringType()), StructField("at", TimestampType())])
DELAY_MS = 5000
RULES = {
    "all keys stay": (["k"], FirstRows()),
    "the time is a key": (["k", "at"], FirstRows("at")),
    "within the watermark": (["k"], FirstRows("at", DELAY_MS)),
}


class Harness:
    """One key group batch by batch, encoded and decoded in between; the watermark follows as Spark moves it."""

    def __init__(self, folder, keys, rule, timeout="EventTimeTimeout"):
        operator = VectorizedOperator(rule, ROW, keys, ROW, STATE, timeout=timeout)
        closing = Closing("at") if rule.time in keys else None
        self.operator, self.keys = operator.bind(Binding("deduplicate", "at", closing=closing)), keys
        self.store = MemoryStore()
        self.cache = cache_of(self.operator.schema, folder, self.store)
        self.group = KeyGroupState(self.operator.schema, self.cache, 0)
        self.late_ms = self.watermark_ms = self.epoch = 0

    def batch(self, rows):
        columns = list(zip(*rows, strict=True)) or [()] * 2
        times = [None if ms is None else dt.datetime.fromtimestamp(ms / 1000, dt.UTC) for ms in columns[1]]
        table = pa.table([pa.array(columns[0], pa.string()), pa.array(times)], schema=arrow_schema(ROW))
        self.group = KeyGroupState.decode(self.group.encode(), self.operator.schema, self.cache, 0)
        clock = Clock(0, self.watermark_ms, self.late_ms)
        shown = self.operator.process(with_hash(table, self.keys) if rows else None, self.group, clock)
        found = [(row["k"], _ms(row["at"])) for each in shown for row in each.to_pylist()]
        self.late_ms = self.watermark_ms
        newest = max((ms for _, ms in rows if ms is not None), default=0)
        self.watermark_ms = max(self.watermark_ms, newest - DELAY_MS)
        return found

    def barrier(self):
        self.epoch += 1
        snapshot(self.group, self.store, self.epoch)

    def live(self):
        return self.group.capture_full(self.epoch).table.num_rows


def _ms(at):
    return None if at is None else round(at.timestamp() * 1000)


class Model:
    """Spark's deduplication, from its documentation and `StreamingDeduplicateWithinWatermarkExec`."""

    def __init__(self, keys, rule):
        self.keys, self.rule, self.state = keys, rule, {}

    def batch(self, rows, late_ms, watermark_ms):
        shown = []
        for row in rows:
            key, ms = row[: len(self.keys)], row[1]
            if (ms is None or ms > late_ms) and key not in self.state:
                self.state[key] = self.forgotten_at(ms)
                shown.append(row)
        self.state = {key: ms for key, ms in self.state.items() if ms > watermark_ms}
        return shown

    def forgotten_at(self, ms):
        if self.rule.time is None or (ms is None and "at" in self.keys):
            return math.inf
        return (ms or 0) + (self.rule.delay_ms or 0)


ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([None, *range(0, 40_000, 2500)])), max_size=6
)


@pytest.mark.parametrize("rule", RULES)
@given(st.lists(ROWS, max_size=10), st.lists(st.booleans(), min_size=10, max_size=10))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_rows_come_out_late_ones_are_dropped_and_keys_are_forgotten_as_in_spark(
    tmp_path_factory, rule, batches, barriers
):
    harness, model = Harness(tmp_path_factory.mktemp("first"), *RULES[rule]), Model(*RULES[rule])
    for rows, barrier in zip(batches, barriers, strict=False):
        expected = model.batch(rows, harness.late_ms, harness.watermark_ms)
        assert harness.batch(rows) == expected
        if barrier:
            harness.barrier()
        assert harness.live() == len(model.state)


@pytest.mark.parametrize(
    ("rule", "kept"), [("within the watermark", 2), ("the time is a key", 2), ("all keys stay", 50)]
)
def test_state_shrinks_where_the_watermark_forgets_keys(tmp_path, rule, kept):
    harness = Harness(tmp_path, *RULES[rule])
    for number in range(50):
        harness.batch([(f"k{number}", number * 10_000)])
    harness.batch([])
    assert harness.live() <= kept


def test_a_time_before_1970_is_forgotten_by_the_first_watermark(tmp_path):
    harness = Harness(tmp_path, ["k"], FirstRows("at"))
    harness.late_ms = -(10**12)
    assert harness.batch([("a", -5000)]) == [("a", -5000)]
    harness.watermark_ms = 1
    harness.batch([])
    assert (harness.live(), harness.group.earliest_timeout_ms) == (0, NO_TIMEOUT)


@pytest.fixture
def of_a_version_without_a_watermark(tmp_path):
    """Return a function that makes the next version of a program, which has the state of one without a watermark."""

    def next_version(rule):
        keys, rule = RULES[rule]
        old, new = Harness(tmp_path / "old", keys, FirstRows(), "NoTimeout"), Harness(tmp_path / "new", keys, rule)
        old.batch([("a", 1000), ("b", 2000), ("b", 90_000)])
        old.barrier()
        new.cache = cache_of(new.operator.schema, tmp_path / "levels", old.store)
        new.group = KeyGroupState.restored(new.operator.schema, new.cache, 0, old.group.files, 1)
        return new

    return next_version


def test_keys_of_a_version_without_a_watermark_are_forgotten_by_their_time(of_a_version_without_a_watermark):
    harness = of_a_version_without_a_watermark("the time is a key")
    # called as Spark calls a restored group, without another coding in between
    list(harness.operator.process(None, harness.group, Clock(0, 0, 0)))
    assert harness.batch([("a", 1000), ("c", 50_000)]) == [("c", 50_000)]
    harness.batch([])
    assert harness.live() == 2  # c, and b at 90 seconds
    assert harness.batch([("b", 90_000)]) == []


def test_a_known_key_of_a_version_without_a_watermark_is_forgotten_after_its_next_row(of_a_version_without_a_watermark):
    harness = of_a_version_without_a_watermark("within the watermark")
    assert harness.batch([("a", 3000)]) == []
    harness.batch([("c", 30_000)])
    assert harness.batch([("a", 31_000)]) == []  # forgotten with this batch's watermark, after its rows
    assert harness.batch([("a", 32_000)]) == [("a", 32_000)]
