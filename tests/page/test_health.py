"""The first lines for a person on call: if the job runs, why not, and how fresh its output is."""

from __future__ import annotations

import pytest
from page_world import reported_world

from spark_ckpt.epochs.records import SinkAck, Timings
from spark_ckpt.observability.page.facts import facts_of
from spark_ckpt.store.standbys import StandbyNote, Standbys
from tests.store.store_world import ELSEWHERE, SINK, World

LEASE_MS = 30_000


@pytest.fixture
def world(tmp_path):
    return reported_world(tmp_path / "store")


def health(world, later_ms=0):
    return facts_of(world.store, world.clock.ms + later_ms)["health"]


def test_a_driver_that_renews_its_lease_runs(world):
    assert (health(world)["status"], health(world)["kind"]) == ("Running", "good")


def test_a_crash_is_not_shown_as_a_stop(world):
    world.store.log.release(1, "[CKPT_QUERY_FAILED] Java ended", keeps=True)
    world.store.log.release(1)
    found = health(world)
    assert (found["status"], found["kind"]) == ("Failed: CKPT_QUERY_FAILED", "bad")
    assert "Java ended" in found["reason"]


def test_a_stop_is_a_stop(world):
    world.store.log.release(1, "stopped")
    assert health(world)["status"] == "Stopped"


@pytest.mark.parametrize("why", ["rewound", "restored to 1790000000"])
def test_a_command_that_has_taken_the_job_back_is_no_failure(world, why):
    world.store.log.release(1, why)
    assert (health(world)["status"], health(world)["kind"]) == ("Stopped", "")


def test_a_driver_that_hangs_is_amber_after_three_renewals(world):
    assert health(world, LEASE_MS - 1)["kind"] == "good"
    found = health(world, LEASE_MS)
    assert (found["status"], found["kind"]) == ("Failed: no sign of life", "warn")


def test_an_outage_that_the_driver_waits_for_is_named(world):
    world.store.log.release(1, "[CKPT_STORE_FULL] no space", keeps=True)
    assert health(world)["status"] == "Waiting for store"


def test_a_standby_that_takes_over_is_reported(world):
    world.store.log.release(1)
    note = StandbyNote(holder=ELSEWHERE, waits_since_ms=1, told_ms=2, epoch=3, warm=True)
    Standbys(world.store.location).write("second", note)
    assert health(world)["status"] == "Standby"


def test_a_job_that_has_never_published_is_late(tmp_path):
    world = World(tmp_path / "store")
    world.begin()
    for _ in range(5):
        world.commit(world.manifest().model_copy(update={"timings": Timings(lag_rows={"in": 7})}))
        world.clock.ms += 1000
    found = health(world)
    assert (found["published"], found["interval_ms"], found["late"]) == (None, 1000, True)


@pytest.mark.parametrize("blocked", [False, True], ids=["deferred", "after an unpublished epoch"])
def test_rows_that_are_published_later_on_purpose_do_not_make_a_job_late(tmp_path, blocked):
    world = World(tmp_path / "store")
    world.begin()
    world.epoch({"a": 1})
    if not blocked:
        world.store.log.record_acks(1, [SinkAck(sink=SINK, epoch=1)])
    for _ in range(5):
        world.clock.ms += 10_000
        rows = world.manifest()
        world.commit(
            rows.model_copy(update={"held": rows.outputs, "outputs": {}, "timings": Timings(lag_rows={"in": 7})})
        )
    world.store.log.renew(1, LEASE_MS)
    assert health(world)["late"] == blocked
    assert health(world)["published"] == (None if blocked else 1)


def test_freshness_sinks_lag_and_restarts(world):
    before = health(world)
    assert (before["published"], before["lag_rows"], before["restarts"]) == (2, 7, 0)
    assert before["sinks"] == [{"name": SINK, "published": 2, "waiting": 1, "late": 0}]
    world.store.log.record_acks(1, [SinkAck(sink=SINK, epoch=3)])
    assert health(world)["published"] == 3
    world.begin()
    assert health(world)["restarts"] == 1
