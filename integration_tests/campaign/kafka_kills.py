"""Kafka to Kafka: one job, killed repeatedly, on realistic input."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count, cycle
from pathlib import Path

from integration_tests.broker import Broker
from integration_tests.campaign.deaths import drawn
from integration_tests.campaign.hard_input import HardLedger, feeding
from integration_tests.campaign.trial import Results
from integration_tests.survival.job import KafkaJob
from integration_tests.survival.kills import DAMAGES, Kill, damage_newest
from integration_tests.survival.ledger import assert_settled

RECORDS_A_LIFE, RECORDS_A_FEED = 600, 60
KEYS = 5_000
ARGUMENTS = ("--wide", "--interval", "1 second")


def hard_job(servers: str, folder: Path, seed: int) -> KafkaJob:
    """A new job in `folder` whose input is a `HardLedger`."""
    folder.mkdir()
    job = KafkaJob.new(servers, folder, seed)
    job.ledger = HardLedger(servers, job.ledger.topic, KEYS, seed)
    return job


def kafka_kills(broker: Broker, folder: Path, kills: int, seed: int, results: Results) -> None:
    """Kill `kills` times, fifty times per job; damage Spark's own checkpoint after each; compare every job's output at its end."""
    draw = random.Random(seed)
    for number in count():
        left = kills - number * 50
        if left <= 0:
            return
        job = hard_job(broker.servers, folder / f"job-{number}", draw.randrange(10**6))
        try:
            _one_job(job, min(50, left), draw, results)
        finally:
            job.close()


def _one_job(job: KafkaJob, kills: int, draw: random.Random, results: Results) -> None:
    damages = cycle(DAMAGES)
    for number in range(kills):
        job.ledger.write(RECORDS_A_LIFE)
        if number % 12 == 11:
            job.ledger.add_partition()
        kill = drawn(draw, job.lives.folder / f"death-{number:03}")
        results.add(named(kill), why=_die(job, kill))
        damage_newest(job.store, next(damages))
    drain(job, results)


def _die(job: KafkaJob, kill: Kill) -> str:
    """Run a driver until its kill; return the broken promise, if any."""
    try:
        with (
            job.lives.start(*ARGUMENTS, environment=kill.environment) as driver,
            feeding(job.ledger.write, RECORDS_A_FEED),
        ):
            kill.strike(driver)
        job.check_watcher()
    except AssertionError as error:
        return str(error)
    return ""


def drain(job: KafkaJob, results: Results, *arguments: str) -> None:
    """Run a last driver to the end of the input; then compare the whole output. `arguments`: further ones of the driver."""
    try:
        job.lives.drain(*ARGUMENTS, "--max-offsets", "20000", *arguments, timeout_s=600)
        found = job.ledger.differences(job.output)
        assert_settled(job.servers, job.output)
        job.check_watcher()
    except AssertionError as error:
        results.add("output compared", why=str(error))
        return
    figures = Counter(lost=found.lost, duplicated=found.duplicated, wrong=found.wrong, reordered=found.reordered)
    results.add("output compared", {"records": job.ledger.records, **figures}, str(found) if found else "")


def named(kill: Kill) -> str:
    """The kind of kill, without its moment."""
    return "random moment" if " s after " in kill.name else kill.name
