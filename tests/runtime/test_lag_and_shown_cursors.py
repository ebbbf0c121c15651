"""Lag reports and shown cursors run next to a job; their failures do not harm it."""

from __future__ import annotations

import threading

import pytest

from spark_ckpt.driver.lag_watch import LagWatch
from spark_ckpt.driver.shown_cursors import ShownCursors
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.errors import SourceInvalid
from spark_ckpt.events.listener import EpochEvent

WAIT_S = 120


class Node:
    def __init__(self, name, source):
        self.name, self.source = name, source


class Counts:
    """A source of 10 rows that counts its lag; with `fails`, its end cannot be read."""

    def __init__(self, fails=False):
        self.fails = fails

    def end(self, spark):
        if self.fails:
            raise SourceInvalid("the broker is away")
        return {"n": 10}

    def lag(self, cursor, end):
        return end["n"] - cursor["n"]


class CannotCount:
    def end(self, spark):
        raise AssertionError("a source that cannot count its lag was called")


def watch(sources, cursors, tell=lambda rows: None, interval_s=0.001):
    return LagWatch(None, [Node(name, source) for name, source in sources.items()], lambda: cursors, tell, interval_s)


def test_lag_is_the_number_of_rows_between_cursor_and_end():
    assert watch({"in": Counts()}, {"in": {"n": 4}}).asked() == {"in": 6}


def test_a_source_that_does_not_answer_is_left_out():
    asked = watch({"in": Counts(), "away": Counts(fails=True)}, {"in": {"n": 4}, "away": {"n": 0}}).asked()
    assert asked == {"in": 6}


def test_no_lag_before_the_first_batch_or_for_sources_that_cannot_count():
    assert watch({"in": Counts()}, {}).asked() == {}
    assert not watch({"files": CannotCount()}, {"files": {"n": 0}}).is_needed


def test_the_watch_reports_repeatedly_until_it_is_closed():
    reports = threading.Semaphore(0)
    watching = watch({"in": Counts()}, {"in": {"n": 4}}, lambda rows: reports.release())
    watching.start()
    assert reports.acquire(timeout=WAIT_S)
    assert reports.acquire(timeout=WAIT_S)
    watching.close()
    watching.join(WAIT_S)
    assert not watching.is_alive()


def test_no_old_lag_stays_when_the_only_source_does_not_answer_any_more():
    source, gone, told = Counts(), threading.Event(), []

    def tell(rows):
        told.append(rows)
        source.fails = True
        if not rows:
            gone.set()

    watching = watch({"in": source}, {"in": {"n": 4}}, tell)
    watching.start()
    assert gone.wait(10)
    watching.close()
    watching.join(WAIT_S)
    assert told == [{"in": 6}, {}]


class Shows:
    shown_as = "a-group"

    def __init__(self, error=None):
        self.error, self.shown, self.free = error, [], threading.Event()
        self.free.set()
        self.began = threading.Event()

    def show(self, cursor):
        self.began.set()
        assert self.free.wait(WAIT_S)
        if self.error:
            raise self.error
        self.shown.append(cursor)


def committed(**cursors):
    return EpochEvent(
        "job", 1, 1, {}, Manifest(job="job", epoch=1, incarnation=1, attempt="a", created_ms=0, cursors=cursors)
    )


def test_only_the_newest_waiting_position_is_shown():
    source = Shows()
    source.free.clear()
    showing = ShownCursors([Node("in", source)])
    showing.start()
    showing.onEpochCommitted(committed(**{"in": {"n": 1}}))
    assert source.began.wait(WAIT_S)
    for number in (2, 3, 4):
        showing.onEpochCommitted(committed(**{"in": {"n": number}}))
    source.free.set()
    showing.close()
    assert source.shown == [{"n": 1}, {"n": 4}]


@pytest.mark.parametrize("error", [SourceInvalid("not authorised"), ValueError("a bug")])
def test_a_source_that_cannot_show_does_not_stop_the_others(error):
    failing, working = Shows(error), Shows()
    showing = ShownCursors([Node("a", failing), Node("b", working)])
    showing.start()
    showing.onEpochCommitted(committed(a={"n": 1}, b={"n": 2}))
    showing.close()
    assert working.shown == [{"n": 2}]


def test_sources_without_shown_cursors_need_no_thread():
    class Silent(Shows):
        shown_as = None

    assert not ShownCursors([Node("in", Silent()), Node("files", CannotCount())]).is_needed
