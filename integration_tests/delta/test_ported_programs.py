"""Public programs, ported to jobs, leave the tables of the plain queries. `python -m integration_tests.ported` runs all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.ported.layers import READING
from integration_tests.ported.menu import PROGRAMS
from integration_tests.ported.pairs import PairDiffers, compare, failing
from integration_tests.ported.program import Program

pytestmark = [pytest.mark.spark, pytest.mark.long]
# Long: tests/docs/test_ported_page.py checks that programs have run as they are now; it judges the comparison without Spark.
SEED = 2
TOTALS = PROGRAMS["totals by MERGE"]
ONCE = PROGRAMS["deduplication"]


@pytest.mark.parametrize("name", [name for name, ported in PROGRAMS.items() if not ported.kafka])
def test_a_ported_program_leaves_the_tables_of_the_plain_query(spark: SparkSession, tmp_path: Path, name: str) -> None:
    compare(spark, tmp_path, PROGRAMS[name], SEED)


def forgetful() -> Program:
    """Return a job that starts with an empty state each time: its operator gets a new name at each start."""
    starts = count()

    def job(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
        number = next(starts)
        job = ckpt.Job(spark, "totals", store=state)
        readings = job.source("readings", FilesSource(f"{inputs}/readings", "json", READING))
        totals = readings.groupBy("device").agg(readings=F.count("*"), total=F.sum("celsius"), name=f"totals_{number}")
        totals.to(DeltaSink(f"{outputs}/totals", engine="spark", keys=["device"]))
        before = [f"totals_{each}" for each in range(number)]
        job.start(availableNow=True, accept_dropped_operator=before).awaitTermination()

    return job


def of_another_key(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
    """A port with a mistake: it drops duplicates of a word, not of an event."""
    job = ckpt.Job(spark, "deduplicated", store=state)
    events = job.source("events", FilesSource(f"{inputs}/events", "json", "guid string, word string, at timestamp"))
    events.withWatermark("at", "30 seconds").dropDuplicatesWithinWatermark(["word"]).to(DeltaSink(f"{outputs}/once"))
    job.start(availableNow=True).awaitTermination()


def test_a_job_that_drops_its_state_at_the_restart_is_found(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PairDiffers, match="table totals after file 2"):
        compare(spark, tmp_path, replace(TOTALS, job=forgetful()), SEED)


def test_a_port_with_a_mistake_is_found(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PairDiffers, match=r"table once after file 1, .*: lost [1-9]"):
        compare(spark, tmp_path, replace(ONCE, job=of_another_key), SEED)


def unpublished_once() -> Program:
    """Return a job whose first run ends after the commit of its last epoch. Only the next start publishes the rows."""
    starts = count()

    def job(spark: SparkSession, inputs: str, outputs: str, state: str) -> None:
        if next(starts):
            ONCE.job(spark, inputs, outputs, state)
            return
        # The first epoch has the start of the source, the second one the rows.
        with failing("EPOCH_COMMITTED:raise:2"):
            ONCE.job(spark, inputs, outputs, state)

    return job


def test_rows_that_come_with_the_next_run_are_late(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PairDiffers, match=r"table once after file 1, interval 1 hour: lost 0, late [1-9]"):
        compare(spark, tmp_path, replace(ONCE, job=unpublished_once()), SEED, interval="1 hour")
