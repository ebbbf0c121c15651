"""SIGTERM and SIGINT: a final epoch, a free lease, an exact output; and an end in time when a batch hangs."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration_tests.outages.driver import HANGS
from integration_tests.outages.feed import Feed, feeding
from integration_tests.survival.process import Driver, wait_until
from spark_ckpt.errors import StopTimedOut

pytestmark = [pytest.mark.spark, pytest.mark.kill]


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    with feeding(tmp_path, tmp_path / "store") as feed:
        yield feed


def running(feed: Feed, *options: str) -> Driver:
    """A job that has published its first rows and is about to read more."""
    feed.put(100)
    driver = feed.start(*options)
    driver.wait_for(lambda: feed.shown() == 100, "the first rows")
    for _ in range(3):
        feed.put(100)
    return driver


def hanging(feed: Feed, *options: str) -> Driver:
    """A job that has published its first rows, and whose operator hangs on the next rows."""
    feed.put(100)
    reached = feed.folder / "reached"
    driver = feed.start("--hangs", str(reached), *options)
    driver.wait_for(lambda: feed.shown() == 100, "the first rows")
    feed.put(1, key=HANGS)
    driver.wait_for(reached.exists, "a batch that hangs")
    return driver


def check_stopped_in_order(feed: Feed, driver: Driver, spark: SparkSession) -> None:
    driver.check_ended_well()
    assert feed.reasons()[-1] == "stop"
    assert feed.state().lease_expires_ms == 0, "the next start on any host begins at once"
    feed.go_on(spark)


@pytest.mark.long  # in the gate: tests/runtime/test_stop_signals.py, and the stop in integration_tests/runtime/test_restarts.py
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_program_takes_a_final_epoch_and_frees_the_lease(
    feed: Feed, spark: SparkSession, number: int
) -> None:
    driver = running(feed)
    driver.signal(number)
    check_stopped_in_order(feed, driver, spark)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.long
def test_a_signal_to_the_whole_group_does_not_end_spark_before_the_final_epoch(
    feed: Feed, spark: SparkSession, number: int
) -> None:
    driver = running(feed)
    driver.signal_group(number)
    check_stopped_in_order(feed, driver, spark)


@pytest.mark.long  # in the gate: tests/runtime/test_stops_that_take_too_long.py
def test_a_batch_that_hangs_does_not_delay_the_end(feed: Feed, spark: SparkSession) -> None:
    driver = hanging(feed, "--stop-timeout", "3 seconds")
    driver.signal(signal.SIGTERM)
    signalled_s = time.monotonic()
    assert driver.wait_for_end() == StopTimedOut.exit_code
    assert time.monotonic() - signalled_s >= 3
    assert driver.events("failed") == [], "the program does not catch the error"
    assert driver.log().count("the job ends without its final epoch") == 1
    assert "Traceback" not in driver.log()
    assert feed.state().lease_expires_ms == 0
    feed.go_on(spark)


@pytest.mark.long
def test_a_second_signal_ends_the_program_at_once(feed: Feed, spark: SparkSession) -> None:
    driver = hanging(feed)
    driver.signal(signal.SIGTERM)
    driver.wait_for(lambda: "another signal ends the program" in driver.log(), "the first signal is handled")
    driver.signal(signal.SIGTERM)
    assert driver.wait_for_end() == -signal.SIGTERM
    driver.kill()
    feed.go_on(spark)


@pytest.mark.long
def test_a_sparks_own_session_that_is_signalled_with_its_program_still_frees_the_lease(
    feed: Feed, spark: SparkSession
) -> None:
    """Its Java process ends with the group: the final epoch may be missing, but no row is lost and no lease is held."""
    driver = running(feed, "--plain-session", "--stop-timeout", "10 seconds")
    driver.signal_group(signal.SIGTERM)
    driver.wait_for_end()
    assert feed.state().lease_expires_ms == 0
    feed.go_on(spark)


@pytest.mark.long  # in the gate: tests/runtime/test_stop_signals.py
def test_a_signal_before_the_job_begins_ends_the_program_and_its_java_without_a_lease(
    feed: Feed, spark: SparkSession
) -> None:
    feed.put(100)
    driver = feed.start()
    driver.wait_for(lambda: len(driver.family()) > 1, "Java starts")
    driver.signal(signal.SIGTERM)
    assert driver.wait_for_end() == -signal.SIGTERM
    wait_until(lambda: driver.family() == [], "Java ends with the program")
    feed.go_on(spark)
