"""An epoch per batch with early sends, killed repeatedly: every record exactly once, in order."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration_tests.survival.job import KafkaJob
from integration_tests.survival.kills import IN_CHILDREN, IN_DRIVER, IN_LANES_AHEAD, at_point, at_random

pytestmark = [pytest.mark.kafka, pytest.mark.kill]
AHEAD = ("--interval", "every batch", "--send-early", "--lanes", "2")
SMALL_STEPS = ("--max-offsets", "1000")
"""No incarnation reaches the end of its input before it is killed."""
RECORDS = 30_000
AROUND_THE_DECISION = ("SENT_EARLY", "EPOCH_COMMITTED", "COMMITTING")
"""Sent and uncommitted, committed and unpublished, half published. A long test has all other failpoints, and random moments."""
EVERY_POINT = (*IN_LANES_AHEAD, *IN_DRIVER, *IN_CHILDREN)
RANDOM_KILLS = 3
EPOCHS_MAX = 300
"""Number of epochs; a failpoint that none of them passes cannot be passed."""
LANE_POINTS = (*IN_LANES_AHEAD, *IN_CHILDREN[1:])


@pytest.mark.long  # in the gate: integration_tests/kafka/test_early_publish.py, and test_kafka_to_kafka.py
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("named", [AROUND_THE_DECISION, EVERY_POINT], ids=["decision", "every point"])
def test_every_kill_leaves_every_record_exactly_once(
    job: KafkaJob, spark: SparkSession, named: tuple[str, ...]
) -> None:
    """For a committed reader at the end, and for one that has read throughout."""
    kills = [at_point(point, job.lives.folder) for point in named]
    kills += [at_random(job.random) for _ in range(RANDOM_KILLS if named == EVERY_POINT else 0)]
    job.random.shuffle(kills)

    for number, kill in enumerate(kills, start=1):
        job.ledger.write(RECORDS // (len(kills) + 1))
        print(f"incarnation {number}: {kill.name}", flush=True)
        job.live_and_die(kill, *SMALL_STEPS, *AHEAD)
        job.check_watcher()
    job.ledger.write(RECORDS - job.ledger.records)
    job.lives.drain_on(spark, *AHEAD, "--max-offsets", "20000")

    job.check_exact()


@pytest.mark.long  # in the gate: integration_tests/kafka/test_early_publish.py, without Spark
def test_a_killed_publishing_process_costs_no_incarnation(job: KafkaJob, spark: SparkSession) -> None:
    """Killed once at each failpoint of early sends and publishes, in one incarnation. The machine determines the number of epochs:
    an epoch that is committed before its early send does not pass these failpoints."""
    once = job.lives.folder / "once"
    once.mkdir()
    kills = [f"{point}:kill" + (":1:1" if point == "COMMITTING" else "") for point in LANE_POINTS]
    environment = {"SPARK_CKPT_FAILPOINT": ",".join(kills), "SPARK_CKPT_FAILPOINT_ONCE": str(once)}
    left = set(LANE_POINTS)
    job.ledger.write(10_000)

    with job.lives.start(*SMALL_STEPS, *AHEAD, environment=environment) as driver:
        for number in range(1, EPOCHS_MAX):
            job.ledger.write(1_000)
            driver.wait_for_events("committed", number)
            left -= {path.name for path in once.iterdir()}
            if not left:
                break
        driver.signal(signal.SIGTERM)
        driver.check_ended_well()

    assert not left
    assert [event["incarnation"] for event in driver.events("started")] == [1]
    job.lives.drain_on(spark, *AHEAD)
    job.check_exact()


PLANTED = """
from spark_ckpt_kafka import publishing

opened = publishing.open_producer


class CommitsWhatIsDelivered:
    def __init__(self, producer):
        self.producer, self.marked, self.early = producer, False, False

    def __getattr__(self, name):
        return getattr(self.producer, name)

    def renew(self):
        return CommitsWhatIsDelivered(self.producer.renew())

    def deliver(self):
        delivered = self.producer.deliver()
        if not self.marked:
            self.producer.commit()
            self.early = True
        return delivered

    def send(self, chunk):
        self.again()
        self.producer.send(chunk)

    def add_marker(self, *marker):
        self.again()
        self.marked = True
        self.producer.add_marker(*marker)

    def again(self):
        if self.early:
            self.producer.begin()
            self.early = False

publishing.open_producer = lambda *what: CommitsWhatIsDelivered(opened(*what))
"""
"""Planted bug: an early send is committed at once, and the marker with the commit of the epoch. Only a kill makes it visible."""


@pytest.mark.long  # in the gate: integration_tests/kafka/test_early_publish.py and tests/simulator/ahead_bugs.py
def test_a_commit_before_the_decision_would_be_noticed(job: KafkaJob, spark: SparkSession, tmp_path: Path) -> None:
    bug = tmp_path / "bug"
    bug.mkdir()
    (bug / "sitecustomize.py").write_text(PLANTED)
    environment = {"PYTHONPATH": os.pathsep.join([str(bug), *filter(None, sys.path)])}
    job.ledger.write(6_000)

    job.live_and_die(at_point("SENT_EARLY", job.lives.folder), *SMALL_STEPS, *AHEAD, environment=environment)
    job.lives.drain_on(spark, "--max-offsets", "20000")

    found = job.ledger.differences(job.output)
    assert found.duplicated, f"the planted bug shows rows twice: {found}"
