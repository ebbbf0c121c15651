"""A broker that dies during a publish costs time, but no row."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka_kit import Cluster, Staged, publish, resume, wait_until_stopped


@pytest.mark.kill
@pytest.mark.parametrize("point", [pytest.param("MID_SEND:stop:2", marks=pytest.mark.long), "PRE_COMMIT:stop"])
def test_broker_kill_9_in_the_middle_of_a_publish_loses_and_repeats_nothing(
    cluster: Cluster,
    staged: Callable[..., Staged],
    failpoint: Callable[[str], None],
    point: str,
) -> None:
    failpoint(point)
    publisher = cluster.publisher()
    first, second = staged(1, rows=3000), staged(2)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(publish, publisher, 1, first)
        pid = wait_until_stopped(publisher)
        cluster.broker.kill()
        resume(pid)
        cluster.broker.start()
        assert running.result(timeout=90).rows == 3000
    publish(publisher, 2, second)

    cluster.assert_exactly(first, second)


@pytest.mark.kill
def test_a_frozen_broker_delays_the_publish_only(
    cluster: Cluster, staged: Callable[..., Staged], failpoint: Callable[[str], None]
) -> None:
    """Longer than the delivery timeout: records fail, the attempt ends, and the next one succeeds."""
    failpoint("MID_SEND:stop:2")
    options = {"request.timeout.ms": 500, "delivery.timeout.ms": 1500, "transaction.timeout.ms": 20_000}
    publisher = cluster.publisher(options=options)
    epoch = staged(1)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(publish, publisher, 1, epoch)
        pid = wait_until_stopped(publisher)
        cluster.broker.pause()
        resume(pid)
        with pytest.raises(TimeoutError):
            running.result(timeout=3)
        cluster.broker.resume()
        running.result(timeout=60)

    cluster.assert_exactly(epoch)
