"""Spark's phases of a micro-batch are reported once Spark has recorded them, and no other work waits for them."""

from __future__ import annotations

import pytest
from incarnation_kit import Bench, eventually

from spark_ckpt.driver.progress import Progress
from spark_ckpt.driver.query.batch_phases import Phases, PhaseWatch, phases_in

COUNTS = {"numInputRows": 10, "numOutputRows": 4, "rejected": 1, "late": 2}
TOOK_MS = {"latestOffset": 11, "walCommit": 12, "queryPlanning": 90, "addBatch": 400, "triggerExecution": 530}
BEGAN = "2026-01-02T03:04:05.678Z"


EVENT_TIME = {"watermark": "2026-01-02T03:03:00.000Z"}
OPERATORS = [{"operatorName": "dedupeWithinWatermark", "numRowsTotal": 4}]


def spark_record(batch, took_ms=TOOK_MS):
    return {
        "batchId": batch,
        "timestamp": BEGAN,
        "durationMs": took_ms,
        "sources": [],
        "eventTime": EVENT_TIME,
        "stateOperators": OPERATORS,
    }


def with_record(batch, incarnation=3):
    progress = Progress("job")
    progress.add(batch, incarnation, 7, COUNTS, 380, {}, {}, {})
    return progress


class Polls:
    """Fires the coordinator's timers, one after the other."""

    def __init__(self, *answers):
        self.answers, self.timers, self.reported = list(answers), [], []
        self.watch = PhaseWatch(self.ask, lambda _, call: self.timers.append(call), self.reported.append)

    def ask(self, batch):
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def play(self):
        polls = 0
        while self.timers:
            polls += 1
            self.timers.pop(0)()
        return polls


def test_a_trigger_without_rows_under_the_next_batchs_number_is_not_taken_for_that_batch():
    idle = spark_record(5, {"latestOffset": 1, "triggerExecution": 1})
    assert phases_in([idle], 5) is None
    found = phases_in([spark_record(4), idle, spark_record(5)], 5)
    assert found == Phases(5, BEGAN, TOOK_MS, EVENT_TIME, OPERATORS)


def test_late_phases_are_polled_and_reported_once():
    polls = Polls(None, None, Phases(5, BEGAN, TOOK_MS), Phases(5, BEGAN, {}))
    polls.watch.batch_ended(5)
    assert polls.play() == 3
    assert polls.reported == [Phases(5, BEGAN, TOOK_MS)]


def test_phases_that_never_come_are_polled_ten_times():
    polls = Polls()
    polls.watch.batch_ended(5)
    assert polls.play() == 10
    assert polls.reported == []


def test_a_query_that_has_ended_stops_the_polling():
    polls = Polls(ConnectionError("the Java process is gone"))
    polls.watch.batch_ended(5)
    assert polls.play() == 1
    assert polls.reported == []


def test_sparks_phases_are_added_to_the_batchs_own_time():
    progress = with_record(5)
    progress.spark_took(3, Phases(5, BEGAN, TOOK_MS, EVENT_TIME, OPERATORS))
    assert progress.last()["eventTime"] == EVENT_TIME
    assert progress.last()["stateOperators"] == OPERATORS
    assert progress.last()["durationMs"] == {**TOOK_MS, "batch": 380}
    assert progress.last()["triggerTimestamp"] == BEGAN
    assert progress.recent()[-1]["durationMs"]["queryPlanning"] == 90


def test_late_phases_do_not_change_a_record_already_returned():
    progress = with_record(5)
    returned = progress.last()
    progress.spark_took(3, Phases(5, BEGAN, TOOK_MS))
    assert returned["durationMs"] == {"batch": 380}


@pytest.mark.parametrize(("incarnation", "batch"), [(2, 5), (3, 4)])
def test_phases_of_another_incarnation_or_batch_change_no_record(incarnation, batch):
    progress = with_record(5)
    assert progress.spark_took(incarnation, Phases(batch, BEGAN, TOOK_MS)) is None
    assert progress.last()["durationMs"] == {"batch": 380}


def test_listeners_receive_sparks_phases_after_the_batch(tmp_path, monkeypatch):
    bench, received = Bench(tmp_path, monkeypatch), []
    bench.listener.onProgress = lambda event: received.append(("progress", event))
    bench.listener.onPhases = lambda event: received.append(("phases", event))
    incarnation = bench.begin()
    incarnation.query.spark_phases[0] = Phases(0, BEGAN, TOOK_MS)
    incarnation.batch(1, 2, 3)
    eventually(lambda: len(received) == 2, "phases")
    incarnation.stopped()

    (first, over), (second, through) = received[:2]
    assert (first, second) == ("progress", "phases")
    assert over.progress["durationMs"] == {"batch": 5}
    assert through.progress == over.progress | {
        "triggerTimestamp": BEGAN,
        "durationMs": {**TOOK_MS, "batch": 5},
        "eventTime": {},
        "stateOperators": [],
    }
    assert (through.job, through.incarnation, through.epoch) == ("job", over.incarnation, over.epoch)
