"""Drivers that are frozen, replaced, and wake up: each successor is the next driver to freeze."""

from __future__ import annotations

import random
import time
from pathlib import Path

from integration_tests.broker import Broker
from integration_tests.campaign.hard_input import feeding
from integration_tests.campaign.kafka_kills import ARGUMENTS, RECORDS_A_FEED, RECORDS_A_LIFE, drain, hard_job
from integration_tests.campaign.trial import Results
from integration_tests.survival.job import KafkaJob
from integration_tests.survival.kills import IN_CHILDREN
from integration_tests.survival.process import Driver

FENCED_CODE = 4
POINTS = ("", "", "", *IN_CHILDREN[1:])


def zombies(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """Freeze `trials` drivers of one job, at a random moment or at a named failpoint; wake each after its successor began."""
    draw = random.Random(seed)
    job = hard_job(broker.servers, folder / "zombies", draw.randrange(10**6))
    try:
        living = _start(job, "")
        for number in range(trials):
            living = _one(job, living, draw, draw.choice(POINTS), number, results)
        living.kill()
        drain(job, results)
    finally:
        job.close()


def _start(job: KafkaJob, point: str, number: int = 0) -> Driver:
    once = job.lives.folder / f"once-{number:03}"
    once.mkdir(exist_ok=True)
    armed = {"SPARK_CKPT_FAILPOINT": f"{point}:stop", "SPARK_CKPT_FAILPOINT_ONCE": str(once)} if point else {}
    return job.lives.start(*ARGUMENTS, "--takeover", "--lease", "10 minutes", environment=armed)


def _one(job: KafkaJob, zombie: Driver, draw: random.Random, point: str, number: int, results: Results) -> Driver:
    """Freeze the living driver, start its successor, wake the frozen one; return the successor for the next trial."""
    job.ledger.write(RECORDS_A_LIFE)
    with feeding(job.ledger.write, RECORDS_A_FEED):
        zombie.wait_for_events("committed", 1)
        time.sleep(draw.uniform(0, 1.5))  # a random moment of the freeze
    zombie.stop()
    job.ledger.write(RECORDS_A_LIFE)
    successor = _start(job, point, number)
    why = ""
    try:
        check_fenced(zombie, successor, draw)
        job.check_watcher()
    except AssertionError as error:
        why = str(error)
    finally:
        zombie.kill()
    results.add(f"frozen, its publisher at {point}" if point else "frozen at a random moment", why=why)
    return successor


def check_fenced(zombie: Driver, successor: Driver, draw: random.Random) -> None:
    """Wake a frozen driver after its successor began: it ends as fenced, and commits nothing."""
    seen = len(zombie.events())
    successor.wait_for_events("started", 1)
    time.sleep(draw.uniform(0, 2))  # a random moment of the wake-up
    zombie.resume()
    code = zombie.wait_for_end()
    said = [event["condition"] for event in zombie.events("failed")]
    assert (code, said) == (FENCED_CODE, ["CKPT_FENCED"]), f"ended with {code}, {said}\n{zombie.log()}"
    late = [event for event in zombie.events()[seen:] if event["event"] == "committed"]
    assert not late, f"committed after its successor began: {late}"
