"""The broker dies and restarts while one driver runs: the driver must continue by itself."""

from __future__ import annotations

import random
import time
from pathlib import Path

from integration_tests.broker import Broker
from integration_tests.campaign.kafka_kills import ARGUMENTS, RECORDS_A_LIFE, drain, hard_job
from integration_tests.campaign.trial import Results


def broker_kills(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """Kill the broker `trials` times under one driver, each time 0 to 2 s after a commit and for up to 5 s."""
    draw = random.Random(seed)
    job = hard_job(broker, folder / "brokers", draw.randrange(10**6))
    try:
        driver = job.lives.start(*ARGUMENTS)
        for _ in range(trials):
            job.ledger.write(RECORDS_A_LIFE)
            committed = len(driver.events("committed"))
            driver.wait_for_events("committed", committed + 1)
            time.sleep(draw.uniform(0, 2))  # a random moment of the kill
            broker.kill()
            time.sleep(draw.uniform(0, 5))  # a random duration
            broker.start()
            results.add("broker killed", {"incarnations": len(driver.events("started"))})
        driver.kill()
        drain(job, results)
    finally:
        job.close()
