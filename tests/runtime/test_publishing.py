"""A sink's publishing thread: one attempt per request, a fresh publisher after a failure, never as a zombie."""

from __future__ import annotations

import queue
import threading
import time

import pytest
from incarnation_kit import eventually

from spark_ckpt.connector import EpochOutput, PublishReceipt, StagedEarly
from spark_ckpt.driver.publishing import SinkLane
from spark_ckpt.errors import Fenced, PublishConflict, PublishFailed

WAIT_S = 120


class FakePublisher:
    """Follow a script: raise an exception, or publish."""

    def __init__(self, number, script, log, had):
        self.number, self.script, self.log, self.had = number, script, log, had

    def publish(self, output):
        self.log.append(("publish", self.number, output.epoch))
        outcome = self.script.pop(0) if self.script else None
        if outcome is not None:
            raise outcome
        return PublishReceipt(output.epoch, 1, replayed=output.epoch in self.had)

    def send_early(self, staged):
        self.log.append(("early", self.number, staged.epoch))
        outcome = self.script.pop(0) if self.script else None
        if callable(outcome):
            outcome()
        elif outcome is not None:
            raise outcome
        return 7

    def drop_early_send(self):
        self.log.append(("drop", self.number))

    def fence(self):
        self.log.append(("fence", self.number))
        if self.script:
            raise self.script.pop(0)

    def close(self):
        self.log.append(("close", self.number))
        raise OSError("closing is best effort")


class Lane:
    """A lane with fake publishers: its calls in `log`, its reports in order. `had`: epochs that the sink already has."""

    def __init__(
        self,
        *script,
        current=lambda: None,
        opening=None,
        opens_at_once=False,
        fences=False,
        measured=lambda *_: None,
        had=(),
    ):
        self.log, self.reports, self.opened = [], queue.Queue(), 0
        self.script, self.opening, self.had = list(script), list(opening or ()), had
        self.thread = SinkLane(
            "out",
            self._open,
            current,
            self._newest,
            self.reports.put,
            opens_at_once=opens_at_once,
            fences=fences,
            measured=measured,
        )
        self.thread.start()

    def _open(self):
        self.opened += 1
        if self.opening:
            raise self.opening.pop(0)
        return FakePublisher(self.opened, self.script, self.log, self.had)

    def _newest(self):
        self.log.append(("newest",))
        return 3

    def publish(self, epoch):
        self.thread.submit(EpochOutput(epoch, 1, epoch - 1, "", {}, []))
        return self.reports.get(timeout=WAIT_S)

    def send(self, epoch):
        self.thread.submit(StagedEarly(epoch, 1, "", {}, []))
        return self.reports.get(timeout=WAIT_S)

    def end(self):
        self.thread.stop()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def lane_of():
    lanes = []

    def make(*script, **options):
        lanes.append(Lane(*script, **options))
        return lanes[-1]

    yield make
    for lane in lanes:
        lane.end()


def test_epochs_are_published_in_order_by_one_publisher(lane_of):
    lane = lane_of()
    outcomes = [lane.publish(epoch) for epoch in (1, 2, 3)]
    assert [(outcome.epoch, outcome.rows, outcome.error) for outcome in outcomes] == [
        (1, 1, None),
        (2, 1, None),
        (3, 1, None),
    ]
    assert lane.log == [("publish", 1, 1), ("publish", 1, 2), ("publish", 1, 3)]


def test_the_newest_incarnation_is_read_only_after_a_replayed_publish(lane_of):
    lane = lane_of(had=(1,))
    assert [(ended.replayed, ended.newest) for ended in map(lane.publish, (1, 2))] == [(True, 3), (False, 0)]
    assert lane.log == [("publish", 1, 1), ("newest",), ("publish", 1, 2)]


def test_a_failure_is_reported_once_and_not_retried(lane_of):
    lane = lane_of(PublishFailed("broker away"))
    outcome = lane.publish(1)
    assert (outcome.error.what, outcome.error.retriable) == ("broker away", True)
    assert lane.reports.empty()
    assert [entry for entry in lane.log if entry[0] == "publish"] == [("publish", 1, 1)]


def test_a_publisher_that_failed_is_closed_and_replaced(lane_of):
    lane = lane_of(PublishFailed("broker away"))
    lane.publish(1)
    assert lane.publish(1).error is None
    assert lane.log == [("publish", 1, 1), ("close", 1), ("publish", 2, 1)]


@pytest.mark.parametrize("error", [Fenced("newer"), PublishConflict("marker")])
def test_a_final_error_is_reported_as_final(lane_of, error):
    outcome = lane_of(error).publish(1)
    assert outcome.error is error
    assert not outcome.error.retriable


def test_a_connectors_bug_is_a_retriable_failure_with_its_name(lane_of):
    outcome = lane_of(ZeroDivisionError("oops")).publish(1)
    assert isinstance(outcome.error, PublishFailed)
    assert "ZeroDivisionError: oops" in outcome.error.what
    assert (outcome.error.context["sink"], outcome.error.context["epoch"]) == ("out", 1)
    assert f'File "{__file__}"' in outcome.error.context["traceback"]


def test_a_publisher_that_cannot_be_opened_is_a_failed_attempt(lane_of):
    lane = lane_of(opening=[OSError("no route")])
    assert "no route" in lane.publish(1).error.what
    assert lane.publish(1).error is None


def test_a_zombie_opens_no_publisher(lane_of):
    """Opening one would fence the driver that took over."""

    def replaced():
        raise Fenced("incarnation 9 took over")

    lane = lane_of(current=replaced)
    assert isinstance(lane.publish(1).error, Fenced)
    assert (lane.opened, lane.log) == (0, [])


def test_every_attempt_first_checks_that_its_incarnation_is_current(lane_of):
    asked = []

    def current():
        asked.append(len(asked))
        if len(asked) == 3:
            raise Fenced("incarnation 9 took over")

    lane = lane_of(current=current)
    outcomes = [lane.publish(epoch) for epoch in (1, 2, 3)]
    assert [outcome.error is None for outcome in outcomes] == [True, True, False]
    assert ("publish", 1, 3) not in lane.log


def test_stopping_ends_after_what_was_submitted_and_closes_the_publisher():
    lane = Lane()
    for epoch in (1, 2):
        lane.thread.submit(EpochOutput(epoch, 1, epoch - 1, "", {}, []))
    lane.end()
    assert lane.log == [("publish", 1, 1), ("publish", 1, 2), ("close", 1)]


def test_an_early_send_is_reported_before_its_publish(lane_of):
    lane = lane_of()
    sent, published = lane.send(1), lane.publish(1)
    assert (sent.sink, sent.epoch, sent.rows, sent.error) == ("out", 1, 7, None)
    assert published.error is None
    lane.end()
    assert lane.log == [("early", 1, 1), ("publish", 1, 1), ("close", 1)]


def test_a_publish_that_waits_for_an_early_send_reports_the_wait(lane_of):
    """Only the time of the wait is measured, which no part that the sink reports includes."""
    measured_ms, sent = [], threading.Event()
    lane = lane_of(sent.wait, measured=lambda *what: measured_ms.append(what))
    lane.thread.submit(StagedEarly(1, 1, "", {}, []))
    lane.thread.submit(EpochOutput(1, 1, 0, "", {}, []))
    time.sleep(0.05)
    sent.set()
    lane.end()
    lane = lane_of(measured=lambda *what: measured_ms.append(what))
    lane.send(2)
    lane.publish(2)
    lane.end()
    [(sink, epoch, parts_ms)] = measured_ms
    assert (sink, epoch, list(parts_ms)) == ("out", 1, ["early"])
    assert 50 <= parts_ms["early"] < 1000 * WAIT_S


def test_an_unpublished_early_send_is_dropped_when_the_lane_ends(lane_of):
    lane = lane_of()
    lane.send(1)
    lane.end()
    assert lane.log == [("early", 1, 1), ("drop", 1), ("close", 1)]


def test_an_early_send_is_dropped_in_order_and_once(lane_of):
    lane = lane_of()
    lane.send(1)
    lane.thread.drop_early_send()
    lane.thread.drop_early_send()
    lane.send(2)
    assert lane.log == [("early", 1, 1), ("drop", 1), ("early", 1, 2)]


def test_a_publisher_whose_early_send_fails_is_replaced_and_the_epoch_is_published(lane_of):
    lane = lane_of(ZeroDivisionError("oops"))
    sent = lane.send(1)
    assert "ZeroDivisionError: oops" in sent.error.what
    assert lane.publish(1).error is None
    assert lane.log == [("early", 1, 1), ("close", 1), ("publish", 2, 1)]


def test_a_zombie_opens_no_publisher_for_an_early_send(lane_of):
    def current():
        raise Fenced("newer")

    lane = lane_of(current=current, opens_at_once=True)
    assert isinstance(lane.send(1).error, Fenced)
    assert lane.opened == 0


def test_the_log_is_not_read_while_a_publisher_is_open(lane_of):
    """A commit may be under way in the log, and the sink itself fences."""
    asked = []
    lane = lane_of(current=lambda: asked.append(1), opens_at_once=True)
    lane.send(1)
    lane.send(1)
    assert (len(asked), lane.opened) == (1, 1)


def test_a_sink_that_cannot_be_opened_early_is_opened_when_it_is_needed(lane_of):
    lane = lane_of(opening=[OSError("no route")], opens_at_once=True)
    assert lane.publish(1).error is None
    assert lane.opened == 2


def test_a_lane_fences_older_publishers_before_there_is_anything_to_publish(lane_of):
    lane = lane_of(fences=True)
    eventually(lambda: lane.log, "the fence")
    assert lane.log == [("fence", 1)]
    assert lane.publish(1).error is None
    assert lane.log[1:] == [("publish", 1, 1)]


def test_a_fence_that_failed_is_repeated_before_the_publish(lane_of):
    lane = lane_of(OSError("no route"), fences=True)
    assert lane.publish(1).error is None
    assert lane.log == [("fence", 1), ("close", 1), ("fence", 2), ("publish", 2, 1)]


class OpensLate(Lane):
    """A sink that does not answer while its publisher opens, until `answers` is set."""

    def __init__(self):
        self.asked, self.answers = threading.Event(), threading.Event()
        super().__init__()

    def _open(self):
        self.asked.set()
        assert self.answers.wait(WAIT_S)
        return super()._open()


def test_a_lane_that_stops_while_its_publisher_opens_publishes_nothing():
    lane = OpensLate()
    lane.thread.submit(EpochOutput(1, 1, 0, "", {}, []))
    assert lane.asked.wait(WAIT_S)
    lane.thread.stop()
    assert not lane.thread.give_up()
    lane.answers.set()
    lane.thread.join(WAIT_S)
    assert lane.log == [("close", 1)]
