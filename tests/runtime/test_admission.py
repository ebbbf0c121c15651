"""The limit of rows for the next batch."""

import pytest

from spark_ckpt.config import JobConfig
from spark_ckpt.driver.query.admission import FIRST_BATCH_ROWS, Admission

SHORT_MS = 1_000


class Limited:
    """A source with a limit of its own, or none."""

    def __init__(self, rows_per_batch=None):
        self.rows_per_batch = rows_per_batch

    def limited(self, rows):
        return Limited(rows) if self.rows_per_batch is None or self.rows_per_batch > rows else None


def admission(short_ms=SHORT_MS, **sources):
    found = Admission(sources, short_ms)
    found.standby_waits = True
    return found


def test_a_job_with_a_backlog_reads_few_rows_first_and_then_as_configured():
    found = Admission({"own": Limited(1_500_000), "none": Limited(), "less": Limited(10), "unlimited": object()}, None)
    assert {name: source.rows_per_batch for name, source in found.small().items()} == dict.fromkeys(
        ("own", "none"), FIRST_BATCH_ROWS
    )
    assert found.after_batch({"own": 20_000, "none": 0, "less": 10, "unlimited": 5}, 4_000) == {
        "own": 1_500_000,
        "none": None,
    }
    assert found.after_batch({"own": 1_500_000, "none": 3, "less": 10, "unlimited": 5}, 4_000) == {}


def test_while_a_standby_waits_a_batch_reads_what_takes_no_longer_than_an_epoch():
    found = admission(rows=Limited(1_500_000))
    assert found.after_batch({"rows": 1_500_000}, 3_000) == {"rows": 500_000}


@pytest.mark.parametrize("took_ms", [SHORT_MS, 300])
def test_a_batch_that_was_short_enough_needs_no_limit(took_ms):
    assert admission(rows=Limited(1_500_000)).after_batch({"rows": 1_000_000}, took_ms) == {}


@pytest.mark.parametrize(("took_ms", "next_rows"), [(2_000, 240_000), (800, 600_000)])
def test_a_full_batch_says_how_many_rows_the_next_one_may_read(took_ms, next_rows):
    found = admission(rows=Limited(1_500_000))
    found.after_batch({"rows": 1_500_000}, 3_000)
    assert found.after_batch({"rows": 480_000}, took_ms) == {"rows": next_rows}


def test_a_short_batch_that_found_few_rows_leaves_the_limit():
    found = admission(rows=Limited(1_500_000))
    found.after_batch({"rows": 1_500_000}, 3_000)
    assert found.after_batch({"rows": 2_000}, 300) == {}


def test_a_limit_ends_at_the_configured_one():
    found = admission(rows=Limited(600_000), other=Limited())
    assert found.after_batch({"rows": 600_000, "other": 600_000}, 2_000) == {"rows": 300_000, "other": 300_000}
    assert found.after_batch({"rows": 300_000, "other": 300_000}, 400) == {"rows": 600_000, "other": 750_000}


def test_a_batch_that_is_slow_for_any_input_still_reads_some_rows():
    assert admission(rows=Limited()).after_batch({"rows": 30}, 60_000) == {"rows": FIRST_BATCH_ROWS}


def test_once_no_standby_waits_batches_are_as_configured():
    found = admission(rows=Limited(1_500_000), other=Limited())
    found.after_batch({"rows": 1_500_000, "other": 100_000}, 3_000)
    found.standby_waits = False
    assert found.after_batch({"rows": 500_000, "other": 1}, 3_000) == {"rows": 1_500_000, "other": None}


@pytest.mark.parametrize(
    ("settings", "short_ms"),
    [
        ({"interval": "5 seconds"}, None),
        ({"interval": "5 seconds", "standby_interval": "1 second"}, 1_000),
        ({"interval": "1 second", "standby_interval": "5 seconds"}, None),
        ({"interval": "every batch", "standby_interval": "1 second"}, None),
    ],
)
def test_batches_are_short_only_where_epochs_are(settings, short_ms):
    assert JobConfig.of(settings, {}).short_batch_ms == short_ms
