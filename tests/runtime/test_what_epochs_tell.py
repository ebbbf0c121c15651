"""What an incarnation's epochs say for those who look, and that nothing depends on it."""

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


def test_an_epoch_tells_how_long_its_parts_took_and_the_next_one_what_came_after(bench):
    life = bench.born()
    for number, value in ((2, 1), (3, 2)):
        life.life.request_savepoint(f"s{number}")
        life.epoch(number, value)
        eventually(lambda epoch=number: epoch in bench.heard_of("published"), f"publish of {number}")
    life.stopped(4)
    second, third = (bench.store.reopened().log.manifest(epoch).timings for epoch in (2, 3))

    assert second.snapshot_ms == 5, "what the batch took"
    assert second.barrier_ms is not None
    parts = {(each.epoch, each.part) for each in third.earlier}
    assert {(2, "decision"), (2, "publish")} <= parts


def test_listeners_hear_parts_sizes_and_the_manifest_itself(bench):
    events = []
    bench.heard.onEpochCommitted = lambda event: (
        events.append(event),
        bench.heard.events.append(("committed", event.epoch)),
    )
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    life.stopped(2)

    event = next(event for event in events if event.epoch == 2)
    assert event.detail["parts_ms"].keys() == {"barrier", "snapshot", "decision"}
    assert event.detail["sinks"] == ["out"]
    assert event.manifest.cursors == {"in": {"n": 1}}


def test_a_batch_is_an_event_with_the_record_of_progress(bench):
    events = []
    bench.heard.onProgress = events.append
    life = bench.born()
    life.batch(1, 2, 3)
    eventually(lambda: events, "progress")
    life.stopped()

    assert events[0].progress["numOutputRows"] == 3
    assert events[0].progress["job"] == "job"


def test_a_batchs_record_has_the_parts_of_its_action(bench):
    events = []
    bench.heard.onProgress = events.append
    life = bench.born()
    group = {"late": 0, "began_ms": 1130.0, "ended_ms": 1300.0, "snapshot_ms": 20.0}
    action = {"began_ms": 1000.0, "ended_ms": 1400.0}
    reports = [Report("operator", 0, 0, "totals", group), Report("input", 0, 0, "sources", action)]
    life.batch(1, reports=reports)
    eventually(lambda: events, "progress")
    life.stopped()

    parts = {"fetch": 130, "operator": 150, "snapshot": 20, "staging": 100}
    assert events[0].progress["durationMs"] == {"batch": 5, **parts}


def test_a_publish_has_its_parts_if_the_sink_tells_them(bench, monkeypatch):
    events, parts_ms = [], {"init": 0, "send": 40, "commit": 20}

    def publish(output):
        return PublishReceipt(output.epoch, 1, replayed=False, detail={"lanes": 1, "parts_ms": parts_ms})

    monkeypatch.setattr(bench.sink, "publish", publish)
    bench.heard.onEpochPublished = events.append
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    life.stopped(2)

    assert events[0].detail["parts_ms"] == parts_ms
    assert events[0].detail["duration_ms"] >= 0


def test_an_epoch_tells_how_the_job_is_connected(tmp_path, monkeypatch):
    bench = Bench(tmp_path, monkeypatch, operator=an_operator())
    life = bench.born()
    life.life.abandon(1)
    life.ended()
    graph = {node.id: node.inputs for node in bench.manifests()[-1].graph}

    assert graph == {"source/in": (), "operator/totals": ("source/in",), "sink/out": ("source/in",)}


def test_the_log_says_how_each_incarnation_ended(bench):
    first = bench.born()
    first.batch(1)
    first.stopped()
    bench.sink.script = [PublishConflict("the marker is another one\nrow: secret")]
    second = bench.born()
    second.batch(2)
    second.life.request_stop()
    second.play_until(lambda: second.ending)
    bench.overtaken()
    lives = {life.incarnation: life for life in bench.state().incarnations}

    assert lives[1].why == "stopped"
    assert lives[2].why == "[CKPT_PUBLISH_CONFLICT] the marker is another one"
    assert (lives[3].why, lives[3].ended_ms) == ("", 0)
    assert lives[2].began_ms >= lives[1].ended_ms > 0


def test_the_overview_of_a_real_store_has_every_epoch(bench):
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    life.stopped(3)
    facts = facts_of(bench.store.reopened(), 0)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in facts["epochs"]]

    assert [(row["epoch"], row["reason"], row["savepoints"]) for row in rows] == [
        (1, "initial", []), (2, "savepoint", ["named"]), (3, "stop", []),
    ]  # fmt: skip
    assert rows[1]["decision_ms"] is not None
    assert facts["incarnations"][0]["ended"] == "stopped"
