"""Spark's own phases, watermark and operators of a batch, as a run reports them."""

from __future__ import annotations

import datetime as dt
import time

import pytest
from pyspark.sql import DataFrame
from runtime_kit import ENOUGH_S, Bench, totals

pytestmark = pytest.mark.spark
PHASES = {"latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution"}


def distinct(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("at", "10 seconds").dropDuplicatesWithinWatermark(["k"]).select("k", "v")


def test_a_batch_has_sparks_phases_and_operators_around_its_own_time(bench: Bench) -> None:
    bench.schema = "k string, v long, at timestamp"
    moment = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    bench.put(("a", 1, moment), ("a", 1, moment))
    job = bench.job()
    totals(job.source("in", bench.source()).transform(distinct)).to(bench.sink(), name="out")
    run = job.start()
    run.savepoint("named", ENOUGH_S)
    deadline_s = time.monotonic() + ENOUGH_S
    while not (whole := [each for each in run.recentProgress if "triggerTimestamp" in each]):
        assert time.monotonic() < deadline_s, "no batch has phases"
        run.awaitTermination(0.05)
    assert run.stop(ENOUGH_S)

    took_ms = whole[0]["durationMs"]
    assert isinstance(took_ms, dict)
    assert took_ms.keys() >= PHASES | {"batch"}
    assert took_ms["batch"] <= took_ms["addBatch"] <= took_ms["triggerExecution"]
    parts = [took_ms[name] for name in ("fetch", "operator", "snapshot", "staging")]
    assert took_ms["batch"] / 2 < sum(parts) <= took_ms["batch"] + len(parts), (
        "rounded, and the action is most of the batch"
    )
    assert whole[0]["triggerTimestamp"] < whole[0]["timestamp"]

    rows = {each["operatorName"]: each["numRowsTotal"] for each in whole[0]["stateOperators"]}
    assert rows["dedupeWithinWatermark"] == 1
    assert whole[0]["eventTime"]["max"] == "2024-07-01T12:00:00.000Z"
