"""Kafka to Kafka, the driver killed repeatedly: every record exactly once, in order, at the end and throughout."""

from __future__ import annotations

from itertools import cycle, pairwise

import pytest
from pyspark.sql import SparkSession

from integration_tests.broker import Broker
from integration_tests.survival.job import KafkaJob
from integration_tests.survival.kills import (
    DAMAGES,
    IN_CHILDREN,
    IN_DRIVER,
    at_point,
    at_random,
    damage_newest,
)

pytestmark = [pytest.mark.kafka, pytest.mark.kill]
RECORDS = 5_000
"""New records for each driver."""
RANDOM_KILLS = 2
"""Random kills besides all named points. Many more: `python -m integration_tests.campaign run kafka`."""
LANE_POINTS = IN_CHILDREN[1:]
DECIDED = ("EPOCH_COMMITTED",)
"""Committed and unpublished. Without Spark the gate kills at the points of a publish: kafka/test_publish_crash.py."""
EVERY_POINT = (*IN_DRIVER, *IN_CHILDREN)
SMALL_STEPS = ("--max-offsets", "1000")
"""No driver reaches the end of its input before it is killed."""
INTERVALS = ("1 second", "every batch")
"""Intervals in turn: a driver with longer epochs continues after one with short epochs, and the reverse."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "named", [DECIDED, pytest.param(EVERY_POINT, marks=pytest.mark.long)], ids=["decision", "every point"]
)
def test_every_kill_leaves_every_record_exactly_once(
    job: KafkaJob, spark: SparkSession, named: tuple[str, ...]
) -> None:
    """Named failpoints and random moments; Spark's own checkpoint is damaged after each kill, to no effect.

    In the long test the first kill is in the epoch that only pins the start of the sources, before Spark has started.
    In the gate the driver dies in the next epoch, which has rows.
    """
    points = [at_point(point, job.lives.folder, nth=2 if named == DECIDED else 1) for point in named]
    moments = RANDOM_KILLS if named == EVERY_POINT else 0
    later = [*points, *(at_random(job.random) for _ in range(moments))]
    job.random.shuffle(later)
    kills = later
    if named == EVERY_POINT:
        (job.lives.folder / "pinning").mkdir()
        kills = [at_point("EPOCH_COMMITTED", job.lives.folder / "pinning"), *later]

    damages = cycle(DAMAGES if named == EVERY_POINT else DAMAGES[1:])  # the first one changes nothing
    for number, (kill, damage, interval) in enumerate(zip(kills, damages, cycle(INTERVALS), strict=False), start=1):
        job.ledger.write(RECORDS)
        print(f"life {number}: {kill.name}; then {damage.__name__}; {interval}", flush=True)
        job.live_and_die(kill, *SMALL_STEPS, "--interval", interval)
        job.check_watcher()
        damage_newest(job.store, damage)
    job.ledger.write(RECORDS)
    job.lives.drain_on(spark, "--max-offsets", "20000")

    job.check_exact()
    _check_lives(job, len(kills))


def _check_lives(job: KafkaJob, kills: int) -> None:
    """Every driver had at least one incarnation, and continued from an epoch at least as new as the driver before."""
    started = [event for driver in job.lives.drivers for event in driver.events("started")]
    incarnations, bases = [event["incarnation"] for event in started], [event["base"] for event in started]
    assert incarnations == sorted(set(incarnations))
    assert incarnations[-1] > kills
    assert all(before <= after for before, after in pairwise(bases))


@pytest.mark.long  # in the gate: integration_tests/kafka/test_publish_crash.py, without Spark
def test_a_killed_publishing_process_costs_no_incarnation(job: KafkaJob, broker: Broker) -> None:
    """Killed once at each point of a publish, during one run of the driver."""
    once = job.lives.folder / "once"
    once.mkdir()
    kills = [f"{point}:kill" + (":1:1" if point == "COMMITTING" else "") for point in LANE_POINTS]
    environment = {"SPARK_CKPT_FAILPOINT": ",".join(kills), "SPARK_CKPT_FAILPOINT_ONCE": str(once)}
    job.ledger.write(20_000)

    with job.lives.start("--available-now", environment=environment) as driver:
        driver.check_ended_well(300)

    assert {path.name for path in once.iterdir()} == set(LANE_POINTS)
    assert [event["incarnation"] for event in driver.events("started")] == [1]
    job.check_exact()


@pytest.mark.long
def test_a_broker_killed_in_the_middle_of_a_publish_costs_no_incarnation(job: KafkaJob, broker: Broker) -> None:
    once = job.lives.folder / "once"
    once.mkdir()
    environment = {"SPARK_CKPT_FAILPOINT": "MID_SEND:stop", "SPARK_CKPT_FAILPOINT_ONCE": str(once)}
    job.ledger.write(20_000)

    with job.lives.start("--available-now", environment=environment) as driver:
        driver.wait_for((once / "MID_SEND").exists, "rows are being sent")
        broker.kill()
        driver.resume()
        broker.start()
        driver.check_ended_well(300)

    assert [event["incarnation"] for event in driver.events("started")] == [1]
    job.check_exact()
