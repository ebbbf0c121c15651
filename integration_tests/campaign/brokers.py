"""A broker dies and restarts while one driver runs: the driver must continue by itself."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration_tests.broker import Broker
from integration_tests.broker_cluster import BrokerCluster
from integration_tests.campaign.kafka_kills import ARGUMENTS, RECORDS_A_LIFE, drain, hard_job
from integration_tests.campaign.trial import Results
from integration_tests.survival.job import KafkaJob
from integration_tests.survival.process import Driver


def broker_kills(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """Kill the broker `trials` times under one driver, each time 0 to 2 s after a commit and for up to 5 s."""
    draw = random.Random(seed)
    with _one_driver(broker.servers, folder / "brokers", draw, results) as (job, driver):
        for _ in range(trials):
            _work_on(job, driver)
            time.sleep(draw.uniform(0, 2))  # a random moment of the kill
            broker.kill()
            time.sleep(draw.uniform(0, 5))  # a random duration
            broker.start()
            results.add("broker killed", {"incarnations": len(driver.events("started"))})


def leader_kills(cluster: BrokerCluster, folder: Path, trials: int, seed: int, results: Results) -> None:
    """Kill or pause one of three brokers, each time 0 to 2 s after a commit and for up to 10 s.

    Two replicas are left of each partition, so the same incarnation has to continue.
    """
    draw = random.Random(seed)
    with _one_driver(cluster.servers, folder / "leaders", draw, results) as (job, driver):
        for _ in range(trials):
            _work_on(job, driver)
            broker, pauses = draw.choice(cluster.mortal), draw.random() < 0.3
            time.sleep(draw.uniform(0, 2))  # a random moment
            if pauses:
                broker.pause()
            else:
                broker.kill()
                # A client waits for a frozen broker until its request times out, so only here.
                _work_on(job, driver)
            time.sleep(draw.uniform(0, 10))  # a random duration
            broker.resume() if pauses else broker.start()
            cluster.wait_until_whole()
            kind = "leader paused" if pauses else "leader killed"
            incarnations = len(driver.events("started"))
            results.add(kind, {"incarnations": incarnations}, "" if incarnations == 1 else "another incarnation began")


@contextmanager
def _one_driver(servers: str, folder: Path, draw: random.Random, results: Results) -> Iterator[tuple[KafkaJob, Driver]]:
    """Run one driver of a new job; at the end let another one drain the input, and compare the whole output."""
    job = hard_job(servers, folder, draw.randrange(10**6))
    try:
        driver = job.lives.start(*ARGUMENTS)
        yield job, driver
        driver.kill()
        drain(job, results)
    finally:
        job.close()


def _work_on(job: KafkaJob, driver: Driver) -> None:
    """Return when the driver has committed an epoch with new records."""
    committed = len(driver.events("committed"))
    job.ledger.write(RECORDS_A_LIFE)
    driver.wait_for_events("committed", committed + 1)
