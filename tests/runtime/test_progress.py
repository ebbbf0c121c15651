"""Records of micro-batches: counts, rates and totals; and listeners that fail."""

from __future__ import annotations

import logging

from spark_ckpt.coordination.edges import Bound
from spark_ckpt.driver.progress import Progress
from spark_ckpt.events.announcer import Announcer
from spark_ckpt.events.listener import RunListener

COUNTS = {"numInputRows": 10, "numOutputRows": 4, "rejected": 1, "late": 2}


def add(progress, batch, **counts):
    progress.add(batch, 3, 7, COUNTS | counts, 500, {"in": {"n": batch}}, {"loop": batch}, {"totals": 2})


def test_there_is_no_record_before_the_first_batch():
    assert (Progress("job").last(), Progress("job").recent()) == (None, [])


def test_a_record_has_counts_rate_cursors_and_epoch():
    progress = Progress("job")
    add(progress, 5)
    last = progress.last()
    assert {name: last[name] for name in COUNTS} == COUNTS
    assert (last["processedRowsPerSecond"], last["durationMs"]) == (20.0, {"batch": 500})
    assert (last["batchId"], last["incarnation"], last["epoch"], last["sources"]) == (5, 3, 7, {"in": {"n": 5}})
    assert (last["inFlightRows"], last["lateRows"]) == ({"loop": 5}, {"totals": 2})


def test_a_record_says_which_edges_are_full_so_that_the_sources_rest():
    progress = Progress("job", Bound(2))
    for batch in (2, 3):
        add(progress, batch)
    assert [record["backpressure"] for record in progress.recent()] == [[], ["loop"]]


def test_totals_add_up_over_batches():
    progress = Progress("job")
    for batch in range(3):
        add(progress, batch)
    assert progress.last()["totals"] == {name: 3 * count for name, count in COUNTS.items()}
    assert progress.recent()[0]["totals"] == COUNTS


def test_the_latest_hundred_are_kept_oldest_first():
    progress = Progress("job")
    for batch in range(130):
        add(progress, batch)
    assert [each["batchId"] for each in progress.recent()] == list(range(30, 130))


def test_a_batch_that_took_no_time_has_a_rate():
    progress = Progress("job")
    progress.add(0, 1, 1, COUNTS, 0, {}, {}, {})
    assert progress.last()["processedRowsPerSecond"] == 10_000.0


def test_callers_may_change_a_returned_record():
    progress = Progress("job")
    add(progress, 0)
    progress.last().clear()
    progress.recent().clear()
    assert progress.last()["batchId"] == 0


def test_the_newest_record_has_the_lag_once_it_is_measured():
    progress = Progress("job")
    add(progress, 0)
    assert progress.last() == progress.recent()[-1] | {"outage": None}
    progress.lag_is({"in": 7})
    assert progress.last()["lagRows"] == {"in": 7}


class Failing(RunListener):
    def onEpochCommitted(self, event):
        raise ValueError("the user's listener")


class Counting(RunListener):
    def __init__(self):
        self.received = []

    def onEpochCommitted(self, event):
        self.received.append((event.job, event.epoch, event.incarnation, event.detail))


def test_a_listener_that_fails_is_logged_and_the_others_are_called(caplog):
    counting = Counting()
    with caplog.at_level(logging.ERROR, "spark_ckpt"):
        Announcer("job", 3, [Failing(), counting]).committed(7, {"rows_in": 1})
    assert counting.received == [("job", 7, 3, {"rows_in": 1})]
    [logged] = [each.getMessage() for each in caplog.records if each.name == "spark_ckpt"]
    assert "listener Failing failed" in logged
    assert f'File "{__file__}"' in logged
    assert "in _notify" not in logged
