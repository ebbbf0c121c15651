"""An epoch's status is one word; only a late acknowledgement needs an action."""

from __future__ import annotations

import pytest
from store_world import SINK, World

from spark_ckpt.epochs.epoch_status import statuses
from spark_ckpt.epochs.records import SinkAck
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import Fenced

LEASE_MS = 30_000


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path / "store")
    world.begin(lease_ms=LEASE_MS)
    return world


def status(world, epoch, later_ms=0, driver_runs=True):
    return statuses(world.store.log.state(), world.clock.ms + later_ms, driver_runs)[epoch]


def test_a_healthy_jobs_newest_epoch_is_publishing_until_its_acknowledgement(world):
    world.epoch({"a": 1})
    assert status(world, 1) == "publishing"
    world.store.log.record_acks(1, [SinkAck(sink=SINK, epoch=1)])
    assert status(world, 1) == "published"


def test_an_epoch_that_is_not_acknowledged_within_the_lease_is_unpublished(world):
    world.epoch({"a": 1})
    assert status(world, 1, LEASE_MS) == "publishing"
    assert status(world, 1, LEASE_MS + 1) == "unpublished"


def test_without_a_driver_an_epoch_that_a_sink_lacks_is_unpublished_at_once(world):
    world.epoch({"a": 1})
    assert status(world, 1, driver_runs=False) == "unpublished"


def test_rows_of_a_later_publish_are_deferred_while_a_driver_runs(world):
    world.epoch({"a": 1}, acked=0)
    world.deferred_epoch({"a": 2})
    assert status(world, 2, 10 * LEASE_MS) == "deferred"
    assert status(world, 2, driver_runs=False) == "unpublished"


def test_a_recorded_acknowledgement_renews_the_lease(world):
    """It replaces a renewal: a driver that records an acknowledgement sends no other request."""
    world.epoch({"a": 1})
    before = world.store.log.state()
    world.clock.ms += 10_000
    world.store.log.record_acks(1, [SinkAck(sink=SINK, epoch=1)])
    after = world.store.reopened().log.state()
    assert after.lease_expires_ms == world.clock.ms + LEASE_MS > before.lease_expires_ms
    assert after.lease_token > before.lease_token


def test_the_renewal_by_an_acknowledgement_outlives_retention(world):
    for number in range(1, 4):
        world.epoch({"a": number}, full=True, acked=number - 1)
    world.clock.ms += 10_000
    world.store.log.record_acks(1, [SinkAck(sink=SINK, epoch=3)])
    token = world.store.log.state().lease_token
    assert world.store.retain(Retention(keep_last=1, slack=0)).epochs
    assert world.store.reopened().log.state().lease_token == token


def test_a_late_acknowledgement_does_not_acquire_a_free_lease_again(world):
    world.epoch({"a": 1})
    world.store.log.release(1)
    world.store.log.record_acks(1, [SinkAck(sink=SINK, epoch=1)])
    assert world.store.log.state().is_free


def test_an_acknowledgement_of_a_fenced_driver_renews_nothing(world, tmp_path):
    world.epoch({"a": 1})
    replaced = world.store
    world.store = world.store.reopened()
    world.begin(lease_ms=LEASE_MS)
    lease = world.store.log.state().lease_token
    with pytest.raises(Fenced):
        replaced.log.record_acks(1, [SinkAck(sink=SINK, epoch=1)])
    assert world.store.log.state().lease_token == lease
