"""The job waits for a store that is full or unavailable for a while: the same process continues, with exact output."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration_tests.outages.feed import Feed, feeding
from integration_tests.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.spark, pytest.mark.kill]

ATTEMPTS = 4
"""More failed attempts than the two incarnations that the job under test may lose to failures."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", mib=32) as disk:
        yield disk


@pytest.fixture
def feed(tmp_path: Path, disk: SmallDisk) -> Iterator[Feed]:
    with feeding(tmp_path, disk.folder / "store") as feed:
        yield feed


@pytest.mark.long  # in the gate: tests/store/test_full_and_failing_disks.py and tests/coordination/test_patience.py
@pytest.mark.parametrize("trouble", ["full", "taken away"])
def test_a_job_survives_its_stores_outage_with_exact_output(feed: Feed, disk: SmallDisk, trouble: str) -> None:
    damage, repair = (disk.fill, disk.free) if trouble == "full" else (disk.take_away, disk.put_back)
    feed.put(100)
    driver = feed.start()
    driver.wait_for(lambda: feed.shown() == 100, "the first rows")
    damage()
    feed.put(100)
    driver.wait_for_events("outage", ATTEMPTS)
    outages = driver.events("outage")
    assert {each["condition"] for each in outages} == {
        "CKPT_STORE_FULL" if trouble == "full" else "CKPT_STORE_UNREACHABLE"
    }
    assert [each["attempt"] for each in outages] == sorted(each["attempt"] for each in outages)
    feed.put(100)
    repair()
    driver.wait_for(lambda: feed.shown() == 300, "the rows written meanwhile")
    driver.signal(signal.SIGTERM)
    driver.check_ended_well()
    feed.check_exact()
    assert driver.events("done")[0]["progress"]["outage"] is None


@pytest.mark.long
def test_a_stop_while_the_disk_is_full_ends_in_time_and_the_next_start_continues(
    feed: Feed, disk: SmallDisk, spark: SparkSession
) -> None:
    feed.put(100)
    driver = feed.start("--stop-timeout", "5 seconds")
    driver.wait_for(lambda: feed.shown() == 100, "the first rows")
    disk.fill()
    feed.put(100)
    driver.wait_for_events("outage", 2)
    driver.signal(signal.SIGTERM)
    assert driver.wait_for_end() == 3
    (failed,) = driver.events("failed")
    assert failed["condition"] == "CKPT_STORE_FULL"
    assert "no final epoch" in failed["message"]
    disk.free()
    feed.go_on(spark)
