"""Keys that the watermark closes: their late rows are dropped and counted, their state goes, also from the stored changes."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_fixtures import MemoryStore, cache_of, snapshot, with_hash
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

import spark_ckpt.tasks.operators.aggregations as agg
from spark_ckpt.errors import GraphInvalid
from spark_ckpt.tasks.operators.operator import Binding, Clock
from spark_ckpt.tasks.operators.window_keys import Closing, WindowKey
from spark_ckpt.tasks.rows import NO_TIMEOUT, OP, arrow_schema
from spark_ckpt.tasks.state.group_state import KeyGroupState
from spark_ckpt.tasks.state.levels import LevelCache, RangeRef

TIMES = [StructField(name, TimestampType()) for name in ("at", "w_start", "w_end")]
ROW = StructType([StructField("k", StringType()), StructField("v", LongType()), *TIMES])
KEYS = ["k", "w_start", "w_end"]
WINDOW_END = Closing("w_end")
WINDOWS = [WindowKey("w", "w_start", "w_end")]
SPECS = {"n": agg.count(), "total": agg.sum("v")}
ZERO = dt.datetime(2024, 7, 1, tzinfo=dt.UTC)
ZERO_MS = int(ZERO.timestamp() * 1000)
LENGTH_S = 10


def at(seconds):
    return ZERO + dt.timedelta(seconds=seconds)


def row(key, value, second):
    start = second - second % LENGTH_S
    return (key, value, at(second), at(start), at(start + LENGTH_S))


class Harness:
    """One key group batch by batch, encoded and decoded in between; the watermark follows as Spark moves it."""

    def __init__(self, folder, keys=KEYS, closing=WINDOW_END, mode="update", delay_s=5, windows=WINDOWS):
        operator = agg.RunningAggregates(SPECS, ROW, keys, mode, windows)
        self.operator = operator.bind(Binding("windows", "at", closing=closing))
        self.store, self.keys = MemoryStore(), keys
        self.cache = cache_of(self.operator.schema, folder, self.store)
        self.group = KeyGroupState(self.operator.schema, self.cache, 0)
        self.late_ms = self.watermark_ms = 0
        self.delay_s, self.epoch = delay_s, 0

    def batch(self, rows):
        columns = list(zip(*rows, strict=True)) or [()] * len(ROW)
        schema = arrow_schema(ROW)
        arrays = [pa.array(list(each), field.type) for each, field in zip(columns, schema, strict=True)]
        table = with_hash(pa.table(arrays, schema=schema), self.keys) if rows else None
        clock = Clock(0, self.watermark_ms, self.late_ms)
        self.group = KeyGroupState.decode(self.group.encode(), self.operator.schema, self.cache, 0)
        shown = [each for part in self.operator.process(table, self.group, clock) for each in part.to_pylist()]
        self.late_ms = self.watermark_ms
        newest_s = max((each.timestamp() for row in rows for each in row if isinstance(each, dt.datetime)), default=0)
        self.watermark_ms = max(self.watermark_ms, int(newest_s * 1000) - self.delay_s * 1000)
        return shown

    def barrier(self):
        self.epoch += 1
        return snapshot(self.group, self.store, self.epoch)

    def live(self):
        return self.group.capture_full(self.epoch).table.num_rows


class Model:
    """Spark's aggregation in update mode, from its documentation."""

    def __init__(self):
        self.state = {}

    def batch(self, rows, late_ms, watermark_ms):
        kept = [each for each in rows if each[4].timestamp() * 1000 > late_ms]
        for key, value, _, start, end in kept:
            n, total = self.state.get((key, start, end), (0, 0))
            self.state[key, start, end] = (n + 1, total + value)
        changed = {(each[0], each[3], each[4]) for each in kept}
        shown = {key: self.state[key] for key in changed}
        self.state = {key: value for key, value in self.state.items() if key[2].timestamp() * 1000 > watermark_ms}
        return shown, len(rows) - len(kept)


ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 120)), max_size=8)


@given(st.lists(ROWS, max_size=10), st.lists(st.booleans(), min_size=10, max_size=10))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_windows_are_shown_dropped_and_forgotten_as_in_sparks_update_mode(tmp_path_factory, batches, barriers):
    harness, model = Harness(tmp_path_factory.mktemp("windows")), Model()
    for rows, barrier in zip(batches, barriers, strict=False):
        rows = [row(*each) for each in rows]
        expected, late = model.batch(rows, harness.late_ms, harness.watermark_ms)
        shown = harness.batch(rows)
        assert {(e["k"], e["w"]["start"], e["w"]["end"]): (e["n"], e["total"]) for e in shown} == expected
        assert harness.group.late_rows == late
        if barrier:
            harness.barrier()
        assert harness.live() == len(model.state)


def test_a_closed_window_leaves_a_deletion_in_the_stored_changes(tmp_path):
    harness = Harness(tmp_path)
    harness.batch([row("a", 1, 3)])
    harness.barrier()
    harness.batch([row("a", 1, 100)])
    harness.batch([])
    harness.barrier()
    (first, second) = harness.store.files.values()
    assert first.column(OP).to_pylist() == ["put"]
    assert sorted(second.column(OP).to_pylist()) == ["delete", "put"]
    assert harness.live() == 1


def test_state_does_not_grow_with_the_number_of_windows_that_have_closed(tmp_path):
    harness = Harness(tmp_path)
    for number in range(200):
        harness.batch([row("a", 1, number * LENGTH_S), row("b", 1, number * LENGTH_S + 1)])
        harness.barrier()
    assert harness.live() <= 6


def test_state_that_was_written_when_nothing_closed_it_is_forgotten_too(tmp_path):
    """For example by a version that ignored the watermark: windows that no row touches again would stay forever."""
    old = Harness(tmp_path / "old", closing=None)
    old.batch([row("a", 1, 3), row("b", 1, 4)])
    old.barrier()
    old.batch([row("a", 1, 103)])
    old.barrier()
    new = Harness(tmp_path / "new")
    files = [
        RangeRef(path, 0, 1, table.num_rows, "changes", number)
        for number, (path, table) in enumerate(old.store.files.items())
    ]
    cache = LevelCache(tmp_path / "levels", old.store, new.operator.schema)
    new.group = KeyGroupState.restored(new.operator.schema, cache, 0, files, 2)
    new.watermark_ms = new.late_ms = ZERO_MS + 50_000
    assert list(new.operator.process(None, new.group, Clock(0, new.watermark_ms, new.late_ms))) == []
    assert new.live() == 1
    assert new.group.earliest_timeout_ms == ZERO_MS + 109_999


def test_a_window_that_ends_at_1970_or_before_closes_in_an_idle_group_too(tmp_path):
    """Under a watermark its rows are late; state of a version without one has such windows."""
    old, new = Harness(tmp_path / "old", closing=None), Harness(tmp_path / "new", mode="append")
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    for end in (epoch, epoch - dt.timedelta(days=1)):
        start = end - dt.timedelta(seconds=LENGTH_S)
        old.batch([("a", 1, start, start, end)])
    old.barrier()
    new.cache = cache_of(new.operator.schema, tmp_path / "levels", old.store)
    new.group = KeyGroupState.restored(new.operator.schema, new.cache, 0, old.group.files, 1)
    shown = [row for part in new.operator.process(None, new.group, Clock(0, 1, 0)) for row in part.to_pylist()]
    assert len(shown) == 2
    assert (new.live(), new.group.earliest_timeout_ms) == (0, NO_TIMEOUT)


def test_a_group_without_rows_forgets_closed_windows_when_it_is_called(tmp_path):
    harness = Harness(tmp_path)
    harness.batch([row("a", 1, 3)])
    harness.watermark_ms = ZERO_MS + LENGTH_S * 1000 - 1
    assert harness.batch([]) == [] and harness.live() == 1
    harness.watermark_ms += 1
    assert harness.batch([]) == [] and harness.live() == 0
    assert harness.group.earliest_timeout_ms == NO_TIMEOUT


def test_spark_calls_an_idle_group_as_soon_as_the_watermark_reaches_its_windows_end(tmp_path):
    """It calls a group when the watermark is past its timeout. A batch later the row would be late at the next operator."""
    harness = Harness(tmp_path, mode="append")
    harness.batch([row("a", 1, 3)])
    harness.watermark_ms = ZERO_MS + LENGTH_S * 1000
    assert harness.group.earliest_timeout_ms < harness.watermark_ms
    assert [each["n"] for each in harness.batch([])] == [1]


def test_the_start_of_a_window_and_the_time_itself_close_as_its_end_does(tmp_path):
    started = Harness(tmp_path / "s", ["k", "w_start"], Closing("w_start", LENGTH_S * 1_000_000), windows=())
    timed = Harness(tmp_path / "t", ["k", "at"], Closing("at"), windows=())
    for harness, closes_ms in ((started, LENGTH_S * 1000), (timed, 3000)):
        harness.batch([row("a", 1, 3)])
        harness.watermark_ms = ZERO_MS + closes_ms - 1
        harness.batch([])
        assert harness.live() == 1
        harness.watermark_ms += 1
        harness.batch([])
        assert harness.live() == 0


def test_a_time_between_two_milliseconds_closes_at_the_later_one(tmp_path):
    harness = Harness(tmp_path, ["k", "at"], Closing("at"), windows=())
    harness.batch([("a", 1, ZERO + dt.timedelta(microseconds=1), ZERO, ZERO)])
    harness.watermark_ms = ZERO_MS
    harness.batch([])
    assert harness.live() == 1
    harness.watermark_ms += 1
    harness.batch([])
    assert harness.live() == 0


@given(st.lists(ROWS, max_size=10), st.lists(st.booleans(), min_size=10, max_size=10))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_append_shows_a_window_once_when_it_has_closed_as_spark_does(tmp_path_factory, batches, barriers):
    harness, model = Harness(tmp_path_factory.mktemp("windows"), mode="append"), Model()
    for rows, barrier in zip(batches, barriers, strict=False):
        rows = [row(*each) for each in rows]
        before, watermark_ms = dict(model.state), harness.watermark_ms
        changed, late = model.batch(rows, harness.late_ms, watermark_ms)
        closed = {key: value for key, value in (before | changed).items() if key not in model.state}
        shown = harness.batch(rows)
        assert {(e["k"], e["w"]["start"], e["w"]["end"]): (e["n"], e["total"]) for e in shown} == closed
        assert len(shown) == len(closed)
        assert harness.group.late_rows == late
        if barrier:
            harness.barrier()
        assert harness.live() == len(model.state)


def test_append_of_a_grouping_that_no_watermark_closes_is_refused_with_the_mode_of_each_row():
    operator = agg.RunningAggregates(SPECS, ROW, ["k"], "append")
    with pytest.raises(GraphInvalid) as refused:
        operator.bind(Binding("windows", "at"))
    assert 'agg("each row"' in refused.value.hint
    assert refused.value.context["operator"] == "windows"


def test_each_row_drops_late_rows_and_forgets_too_and_shows_the_rows_without_helper_columns(tmp_path):
    harness = Harness(tmp_path, mode="each row")
    assert [field.name for field in harness.operator.output] == ["k", "v", "at", "n", "total"]
    assert [each["total"] for each in harness.batch([row("a", 1, 3), row("a", 2, 4), row("b", 0, 90)])] == [1, 3, 0]
    harness.batch([])
    assert harness.batch([row("a", 5, 5), row("b", 1, 91)])[0]["k"] == "b"
    assert (harness.group.late_rows, harness.live()) == (1, 1)


def test_without_a_closing_key_no_row_is_late_and_nothing_is_forgotten(tmp_path):
    """As in Spark, which ignores the watermark there."""
    harness = Harness(tmp_path, ["k"], None, windows=())
    assert harness.operator.timeout == GroupStateTimeout.NoTimeout
    harness.batch([row("a", 1, 500)])
    harness.batch([])
    assert harness.batch([row("a", 1, 1)])[0]["n"] == 2
    assert (harness.group.late_rows, harness.live()) == (0, 1)


@pytest.mark.parametrize(("closing", "timeout"), [(None, "NoTimeout"), (Closing("w_end"), "EventTimeTimeout")])
def test_spark_calls_the_group_for_closed_windows_only_where_there_are_some(closing, timeout):
    operator = agg.RunningAggregates(SPECS, ROW, KEYS, "update", WINDOWS)
    assert operator.bind(Binding("windows", "at", closing=closing)).timeout == timeout
    assert operator.output["w"].dataType.simpleString() == "struct<start:timestamp,end:timestamp>"
