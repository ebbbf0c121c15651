"""A watermark per operator input: the least of them is in force, none decreases, and a restore recovers each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ckpt.coordination.cut import Watermarks, event_times
from spark_ckpt.epochs.records import Manifest, OperatorSnapshot

ORDERS, PAYMENTS, OTHER = ("settled", "orders"), ("settled", "payments"), ("spent", "clicks")
DELAYS = {ORDERS: 10, PAYMENTS: 20, OTHER: 0}
EMPTY = Manifest(job="job", epoch=0, incarnation=0, attempt="-", created_ms=0)


def stored(watermarks):
    """Return the epoch that ends here, as a restore finds it."""
    snapshot = {"key_groups": 1, "key_schema": "k int", "state_schema": "n int"}
    operators = {
        name: OperatorSnapshot(operator=name, watermarks=inputs, **snapshot)
        for name, inputs in watermarks.by_operator.items()
    }
    times = {"watermark_ms": watermarks.now_ms, "late_watermark_ms": watermarks.late_ms}
    return Manifest.model_validate_json(EMPTY.model_copy(update={"operators": operators, **times}).model_dump_json())


class Query:
    """A query of Spark: its clocks begin with the restored watermarks, its watermark with zero."""

    def __init__(self, watermarks):
        self.watermarks = watermarks
        self.clocks = dict(watermarks.newest_ms)
        self.sparks_ms = 0

    def batch(self, newest):
        self.watermarks.advance(self.sparks_ms, [event_times(newest)])
        self.clocks |= {each: max(self.clocks.get(each, ms), ms) for each, ms in newest.items()}
        least = min(self.clocks[each] - DELAYS[each] if each in self.clocks else 0 for each in DELAYS)
        self.sparks_ms = max(self.sparks_ms, least)

    def in_force(self):
        """Return the watermark of the next batch for a key group, and the one for late rows."""
        return max(self.sparks_ms, self.watermarks.base_ms), self.watermarks.late_ms


def test_the_least_of_the_inputs_is_in_force_once_all_have_had_rows():
    watermarks = Watermarks(DELAYS, EMPTY)
    watermarks.advance(0, [event_times({ORDERS: 1000, PAYMENTS: 2000})])
    assert watermarks.now_ms == 0, "one input has had no row yet"
    watermarks.advance(0, [event_times({OTHER: 1500})])
    assert watermarks.now_ms == 990
    assert watermarks.by_operator == {"settled": {"orders": 990, "payments": 1980}, "spent": {"clicks": 1500}}


def test_no_watermark_decreases():
    watermarks = Watermarks({ORDERS: 10}, EMPTY)
    watermarks.advance(0, [event_times({ORDERS: 1000})])
    watermarks.advance(990, [event_times({ORDERS: 500})])
    assert (watermarks.now_ms, watermarks.by_operator) == (990, {"settled": {"orders": 990}})


def test_a_new_input_of_a_restored_job_stops_the_watermark_and_does_not_decrease_it():
    before = Watermarks({ORDERS: 10}, EMPTY)
    before.advance(0, [event_times({ORDERS: 1000})])
    after = Watermarks(DELAYS, stored(before))
    after.advance(0, [event_times({ORDERS: 5000, PAYMENTS: 30})])
    assert (after.now_ms, after.by_operator["settled"]["payments"]) == (990, 10)


def test_an_epoch_of_an_older_version_has_the_jobs_watermark_only():
    watermarks = Watermarks({ORDERS: 10}, EMPTY.model_copy(update={"watermark_ms": 700}))
    assert (watermarks.now_ms, watermarks.late_ms, watermarks.newest_ms) == (700, 700, {})
    watermarks.advance(0, [event_times({ORDERS: 600})])
    assert watermarks.now_ms == 700


INPUTS = st.dictionaries(st.sampled_from(list(DELAYS)), st.integers(1000, 1400), max_size=3)


@given(batches=st.lists(INPUTS, min_size=1, max_size=12), restores=st.sets(st.integers(0, 11)))
def test_a_restarted_job_has_the_watermarks_of_a_steady_one(batches, restores):
    steady, restarted = Query(Watermarks(DELAYS, EMPTY)), Query(Watermarks(DELAYS, EMPTY))
    for number, newest in enumerate(batches):
        if number in restores:
            restarted = Query(Watermarks(DELAYS, stored(restarted.watermarks)))
        now = restarted.in_force()
        assert now == steady.in_force(), "rows are late, and state goes, by the same watermarks"
        steady.batch(newest)
        restarted.batch(newest)
        assert restarted.watermarks.now_ms == steady.watermarks.now_ms
        assert restarted.watermarks.by_operator == steady.watermarks.by_operator


@pytest.mark.parametrize("body", [{"settled": 5}, {"settled/orders": "soon"}, {"gone/orders": 9000}])
def test_a_report_of_something_else_moves_nothing(body):
    watermarks = Watermarks({ORDERS: 10}, EMPTY)
    report = event_times({})
    watermarks.advance(0, [type(report)(report.step, 0, 0, report.scope, body)])
    assert (watermarks.now_ms, watermarks.by_operator) == (0, {})
