"""Reported times and sizes of an incarnation's epochs."""

from __future__ import annotations

import pytest
from incarnation_kit import Bench, an_operator, eventually

from spark_ckpt.connector import PublishReceipt
from spark_ckpt.coordination.reports import Report
from spark_ckpt.errors import PublishConflict
from spark_ckpt.observability.page.facts import COLUMNS, facts_of


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch)


def test_an_epoch_has_the_times_of_its_parts_and_the_next_one_the_later_parts(bench):
    incarnation = bench.begin()
    for number, value in ((2, 1), (3, 2)):
        incarnation.driver.request_savepoint(f"s{number}")
        incarnation.epoch(number, value)
        eventually(lambda epoch=number: epoch in bench.epochs_of("published"), f"publish of {number}")
    incarnation.stopped(4)
    second, third = (bench.store.reopened().log.manifest(epoch).timings for epoch in (2, 3))

    assert second.snapshot_ms == 5, "the duration of the batch"
    assert second.barrier_ms is not None
    parts = {(each.epoch, each.part) for each in third.earlier}
    assert {(2, "decision"), (2, "publish")} <= parts


def test_listeners_receive_parts_sizes_and_the_manifest(bench):
    events = []
    bench.listener.onEpochCommitted = lambda event: (
        events.append(event),
        bench.listener.events.append(("committed", event.epoch)),
    )
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    incarnation.stopped(2)

    event = next(event for event in events if event.epoch == 2)
    assert event.detail["parts_ms"].keys() == {"barrier", "snapshot", "decision"}
    assert event.detail["sinks"] == ["out"]
    assert event.manifest.cursors == {"in": {"n": 1}}


def test_a_batch_is_an_event_with_the_record_of_progress(bench):
    events = []
    bench.listener.onProgress = events.append
    incarnation = bench.begin()
    incarnation.batch(1, 2, 3)
    eventually(lambda: events, "progress")
    incarnation.stopped()

    assert events[0].progress["numOutputRows"] == 3
    assert events[0].progress["job"] == "job"


def test_a_batchs_record_has_the_parts_of_its_action(bench):
    events = []
    bench.listener.onProgress = events.append
    incarnation = bench.begin()
    group = {"late": 0, "began_ms": 1130.0, "ended_ms": 1300.0, "snapshot_ms": 20.0}
    action = {"began_ms": 1000.0, "ended_ms": 1400.0}
    reports = [Report("operator", 0, 0, "totals", group), Report("input", 0, 0, "sources", action)]
    incarnation.batch(1, reports=reports)
    eventually(lambda: events, "progress")
    incarnation.stopped()

    parts = {"fetch": 130, "operator": 150, "snapshot": 20, "staging": 100}
    assert events[0].progress["durationMs"] == {"batch": 5, **parts}


def test_a_publish_has_the_parts_that_its_sink_reports(bench, monkeypatch):
    events, parts_ms = [], {"init": 0, "send": 40, "commit": 20}

    def publish(output):
        return PublishReceipt(output.epoch, 1, replayed=False, detail={"lanes": 1, "parts_ms": parts_ms})

    monkeypatch.setattr(bench.sink, "publish", publish)
    bench.listener.onEpochPublished = events.append
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    incarnation.stopped(2)

    assert events[0].detail["parts_ms"] == parts_ms
    assert events[0].detail["duration_ms"] >= 0


def test_an_epoch_has_the_jobs_graph(tmp_path, monkeypatch):
    bench = Bench(tmp_path, monkeypatch, operator=an_operator())
    incarnation = bench.begin()
    incarnation.driver.abandon(1)
    incarnation.ended()
    graph = {node.id: node.inputs for node in bench.manifests()[-1].graph}

    assert graph == {"source/in": (), "operator/totals": ("source/in",), "sink/out": ("source/in",)}


def test_the_log_has_the_end_of_each_incarnation(bench):
    first = bench.begin()
    first.batch(1)
    first.stopped()
    bench.sink.script = [PublishConflict("the marker is another one\nrow: secret")]
    second = bench.begin()
    second.batch(2)
    second.driver.request_stop()
    second.play_until(lambda: second.ending)
    bench.overtaken()
    by_number = {incarnation.incarnation: incarnation for incarnation in bench.state().incarnations}

    assert by_number[1].why == "stopped"
    assert by_number[2].why == "[CKPT_PUBLISH_CONFLICT] the marker is another one"
    assert (by_number[3].why, by_number[3].ended_ms) == ("", 0)
    assert by_number[2].began_ms >= by_number[1].ended_ms > 0


def test_the_overview_of_a_real_store_has_every_epoch(bench):
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    incarnation.stopped(3)
    facts = facts_of(bench.store.reopened(), 0)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in facts["epochs"]]

    assert [(row["epoch"], row["reason"], row["savepoints"]) for row in rows] == [
        (1, "initial", []), (2, "savepoint", ["named"]), (3, "stop", []),
    ]  # fmt: skip
    assert rows[1]["decision_ms"] is not None
    assert facts["incarnations"][0]["ended"] == "stopped"
