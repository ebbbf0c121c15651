"""Early sends on a real broker: rows are in an open transaction until their epoch is published, and exactly once after any kill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from kafka_kit import Cluster, Staged, kills_at, output, publish, wait_for
from spark_ckpt_kafka.producer import ProducerFailed
from spark_ckpt_kafka.publisher import early_requests, requests_of
from spark_ckpt_kafka.publishing import ShardPublisher, ShardRequest

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import StagedEarly
from spark_ckpt.errors import CkptError
from tests.kafka.early_commit import CommitsAtOnce

Stages = Callable[..., Staged]
AHEAD_POINTS = ("SENDING_EARLY:kill", "MID_SEND:kill", "SENT_EARLY:kill")
LATER_POINTS = (
    "MARKER_READ:kill", "OFFSETS_SENT:kill", "FLUSHED:kill", "PRE_COMMIT:kill", "COMMITTING:kill:1:1",
    "PUBLISH_COMMITTED:kill",
)  # fmt: skip


def ahead(epoch: int, staged: Staged, files: int | None = None) -> StagedEarly:
    return StagedEarly(Epoch(epoch), Incarnation(1), str(staged.root), {}, staged.files[:files])


def test_rows_sent_early_are_read_when_their_epoch_is_published(cluster: Cluster, staged: Stages) -> None:
    first, second = staged(1, lanes=2), staged(2, lanes=2)
    publisher = cluster.publisher(lanes=2)

    for number, epoch in ((1, first), (2, second)):
        shown = cluster.read()
        assert publisher.send_early(ahead(number, epoch, 1)) == epoch.files[0].rows
        assert publisher.send_early(ahead(number, epoch)) == epoch.files[1].rows
        assert cluster.read() == shown, "rows are readable before their epoch is committed"
        assert not cluster.is_settled(cluster.control.partitions([cluster.topic])), "the early send sent nothing"
        publish(publisher, number, epoch)

    cluster.assert_exactly(first, second)


def test_a_query_for_published_epochs_neither_waits_for_an_open_transaction_nor_ends_it(
    cluster: Cluster, staged: Stages
) -> None:
    first, second = staged(1), staged(2)
    publisher = cluster.publisher()
    publish(publisher, 1, first)
    publisher.send_early(ahead(2, second))

    newest = cluster.sink().newest_published(cluster.context(2))
    marker = cluster.marker()
    receipt = publish(publisher, 2, second)

    assert newest is not None
    assert marker is not None
    assert (newest.epoch, marker.epoch, receipt.replayed) == (1, 1, False)
    cluster.assert_exactly(first, second)


@pytest.mark.kill
@kills_at(AHEAD_POINTS + LATER_POINTS, ("SENT_EARLY:kill", "PRE_COMMIT:kill"))
def test_kill_9_of_a_process_that_sends_ahead_loses_and_repeats_nothing(
    cluster: Cluster, staged: Stages, failpoint: Callable[[str], None], point: str
) -> None:
    failpoint(point)
    publisher = cluster.publisher()
    first, second = staged(1), staged(2)
    before = publisher.pids()

    if point in AHEAD_POINTS:
        with pytest.raises(CkptError):
            publisher.send_early(ahead(1, first))
    else:
        publisher.send_early(ahead(1, first))
    publish(publisher, 1, first)
    publisher.send_early(ahead(2, second))
    publish(publisher, 2, second)

    assert publisher.pids() != before or "COMMITTING" in point, "the failpoint did not kill anything"
    cluster.assert_exactly(first, second)


@pytest.mark.kill
def test_a_successor_aborts_the_early_send_of_a_dead_driver(cluster: Cluster, staged: Stages) -> None:
    """The epoch was not committed; its successor stages other files under the same number."""
    dead, whole = staged(1, rows=100), staged(1)
    driver = cluster.publisher()
    driver.send_early(ahead(1, dead))
    driver.close()

    successor = cluster.publisher(2)
    successor.send_early(ahead(1, whole))
    publish(successor, 1, whole)

    cluster.assert_exactly(whole)


@pytest.mark.kill
def test_a_zombies_early_send_costs_its_successor_no_row(cluster: Cluster, staged: Stages) -> None:
    """It initialises after its successor, so that it aborts the successor's early send."""
    first, second = staged(1), staged(1, rows=100)
    successor = cluster.publisher(2)
    successor.send_early(ahead(1, first))
    zombie = cluster.publisher(1)
    zombie.send_early(ahead(1, second))

    publish(successor, 1, first)

    with pytest.raises(CkptError):
        publish(zombie, 2, second)
    zombie.close()
    publish(successor, 2, third := staged(2))
    cluster.assert_exactly(first, third)


def test_rows_of_a_dropped_early_send_are_not_read(cluster: Cluster, staged: Stages) -> None:
    """An epoch is dropped; its rows come with the next number, in front of others."""
    publisher = cluster.publisher()
    epoch = staged(1)
    publisher.send_early(ahead(1, epoch))

    publisher.drop_early_send()
    cluster.assert_settled()
    publisher.send_early(ahead(2, epoch))
    publisher.send_early(ahead(3, epoch))
    publisher.publish(replace(output(3, epoch), previous=Epoch(0)))

    cluster.assert_exactly(epoch)


def test_a_transaction_that_timed_out_at_the_broker_does_not_count_as_committed(
    cluster: Cluster, staged: Stages
) -> None:
    """Every row was acknowledged; only the marker remains to be sent. The publisher's own clock stands still."""
    short = {"transaction.timeout.ms": 2000, "delivery.timeout.ms": 900, "request.timeout.ms": 400}
    epoch = staged(1)
    lane, request = _lane(cluster, epoch, options=short)
    lane.send_early(_early_of(epoch))
    partitions = cluster.control.partitions([cluster.topic])
    wait_for(lambda: cluster.is_settled(partitions), "the broker aborts the transaction", 40)

    with pytest.raises(ProducerFailed):
        lane.publish(request)
    assert cluster.read() == []
    publish(cluster.publisher(), 1, epoch)

    cluster.assert_exactly(epoch)


def test_a_commit_before_the_decision_would_be_noticed(cluster: Cluster, staged: Stages) -> None:
    dead, whole = staged(1, rows=100), staged(1)
    lane, _ = _lane(cluster, dead, CommitsAtOnce)
    lane.send_early(_early_of(dead))

    publish(cluster.publisher(2), 1, whole)

    with pytest.raises(AssertionError):
        cluster.assert_exactly(whole)


def _lane(
    cluster: Cluster,
    staged: Staged,
    kind: type[ShardPublisher] = ShardPublisher,
    options: dict[str, object] | None = None,
) -> tuple[ShardPublisher, ShardRequest]:
    settings = cluster.sink(options=options or {}).lane_settings(cluster.context())
    [request] = requests_of(output(1, staged), 1, 1)
    return kind(settings, lambda: None, lambda: 0.0), request


def _early_of(staged: Staged) -> ShardRequest:
    [(_, request)] = early_requests(ahead(1, staged), 1, 1)
    return request
