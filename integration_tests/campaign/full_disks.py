"""The disk under the store is full for a while as a job runs: the job waits and continues, with exact output."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from integration_tests.broker import Broker
from integration_tests.campaign.kafka_kills import ARGUMENTS, RECORDS_A_LIFE, drain, hard_job
from integration_tests.campaign.trial import Results
from integration_tests.survival.process import Driver

SIZE = "256m"
LONGEST_S = 12.0
BEGUN = 2
"""Epochs after which a job has started: the first one only has the sources' start, and a full disk then fails the start."""


def full_disks(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """Fill the disk `trials` times for up to 12 s, under one driver. Needs the right to mount a tmpfs."""
    draw, disk = random.Random(seed), folder / "disk"
    with mounted(disk):
        job = hard_job(broker.servers, folder / "full-disks", draw.randrange(10**6))
        stores = ["--store", str(disk / "store")]
        try:
            driver = job.lives.start(*ARGUMENTS, *stores)
            for _ in range(trials):
                results.add("store's disk full", *_one(job.ledger.write, driver, disk, draw))
            driver.kill()
            job.lives.arguments += stores
            drain(job, results)
        finally:
            job.close()


def _one(write: Callable[[int], None], driver: Driver, disk: Path, draw: random.Random) -> tuple[dict[str, float], str]:
    write(RECORDS_A_LIFE)
    try:
        driver.wait_for_events("committed", max(BEGUN, len(driver.events("committed")) + 1))
        time.sleep(draw.uniform(0, 1))  # a random moment
        held_s = draw.uniform(1, LONGEST_S)
        with ballast(disk):
            write(RECORDS_A_LIFE)
            time.sleep(held_s)  # duration of the full disk
        driver.wait_for_events("committed", len(driver.events("committed")) + 1)
    except AssertionError as error:
        return {}, str(error)
    return {"full_s": round(held_s, 1), "incarnations": len(driver.events("started"))}, ""


@contextmanager
def mounted(folder: Path, size: str = SIZE) -> Iterator[None]:
    """Mount a small file system at `folder`."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def ballast(folder: Path) -> Iterator[None]:
    """Fill the file system of `folder` to its last byte."""
    path = folder / "ballast"
    try:
        with path.open("wb", buffering=0) as file:
            with contextlib.suppress(
                OSError
            ):  # the job writes at the same time: there may be less space by now, and the rest is filled up
                os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(folder).free))
            _fill_up(file.fileno())
        yield
    finally:
        path.unlink(missing_ok=True)


def _fill_up(descriptor: int) -> None:
    """Also fill space that others free meanwhile."""
    os.lseek(descriptor, 0, os.SEEK_END)
    while True:
        try:
            os.write(descriptor, b"\0" * 4096)
        except OSError:
            return
