"""Spark's own sources continue exactly at the cut, after a kill and from an older epoch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import spark_ckpt as ckpt
from integration_tests.survival.process import wait_until
from integration_tests.survival.session import TIMEOUT_S, Place
from spark_ckpt.errors import ConfigInvalid, SourceInvalid

pytestmark = pytest.mark.spark
CHILD = Path(__file__).with_name("spark_source_child.py")


def rows_of(table: str, source: str) -> list[dict[str, Any]]:
    uris = DeltaTable(table).file_uris()
    rows = [row for uri in uris for row in pq.read_table(uri, partitioning=None).to_pylist()]
    return sorted((row for row in rows if row["s"] == source), key=lambda row: int(row["value"]))


def check_every_value_once(rows: list[dict[str, Any]]) -> None:
    """Values are 0, 1, 2, ... without a hole or a repeat, and so is the running state."""
    assert [row["value"] for row in rows] == list(range(len(rows)))
    assert sorted(row["n"] for row in rows) == list(range(1, len(rows) + 1))
    assert max(row["total"] for row in rows) == sum(range(len(rows)))


@pytest.mark.kill
@pytest.mark.long
def test_rates_values_and_times_are_those_of_an_undisturbed_run_after_any_kill(tmp_path: Path) -> None:
    (tmp_path / "once").mkdir()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
        "SPARK_CKPT_FAILPOINT": "EPOCH_COMMITTED:kill:3,PUBLISH_COMMITTED:kill:2",
        "SPARK_CKPT_FAILPOINT_ONCE": str(tmp_path / "once"),
    }
    table, store = str(tmp_path / "table"), str(tmp_path / "store")
    codes: list[int] = []
    while len(codes) < 4 and (not codes or codes[-1] != 0):
        command = [sys.executable, str(CHILD), table, store]
        codes.append(subprocess.run(command, env=environment, timeout=300, check=False).returncode)

    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]
    batches, seconds = rows_of(table, "batches"), rows_of(table, "seconds")
    check_every_value_once(batches)
    check_every_value_once(seconds)
    zero = datetime.fromtimestamp(0, batches[0]["timestamp"].tzinfo)
    assert all(row["timestamp"] == zero + timedelta(seconds=row["value"] // 10) for row in batches)
    first = seconds[0]["timestamp"]
    assert all(row["timestamp"] == first + timedelta(milliseconds=50 * row["value"]) for row in seconds)


def job(place: Place, source: ckpt.SparkSource) -> ckpt.Job:
    made = place.job(interval="200 milliseconds")
    made.source("rows", source).select("timestamp", "value").to(place.sink(), name="out")
    return made


def ran_for(made: ckpt.Job, epochs: int, restore: str | int = "latest") -> Any:
    run = made.start(restore=restore)
    before = {each.epoch for each in run.epochs()}
    wait_until(lambda: len([e for e in run.epochs() if e.rows_in and e.epoch not in before]) >= epochs, "epochs")
    assert run.stop(TIMEOUT_S)
    return run


@pytest.mark.long  # in the gate: tests/test_spark_source.py
def test_a_restore_of_an_older_epoch_repeats_only_later_rows(place: Place) -> None:
    source = ckpt.SparkSource("rate-micro-batch", {"rowsPerBatch": 7, "numPartitions": 2})
    kept = [each for each in ran_for(job(place, source), 3).epochs() if each.rows_in]
    cut = kept[0].rows_in
    whole = Counter((row["value"], row["timestamp"]) for row in place.output())

    ran_for(job(place, source), 2, restore=kept[0].epoch)

    found = Counter((row["value"], row["timestamp"]) for row in place.output())
    again = found - whole
    assert min(value for value, _ in again) == cut
    assert {value for value, _ in found} == set(range(len(found)))
    assert all(times == (1 if value < cut else times) and times <= 2 for (value, _), times in found.items())
    assert [value for value, _ in sorted(again)] == list(range(cut, cut + len(again)))


def test_a_source_without_an_end_is_not_drained(place: Place) -> None:
    with pytest.raises(ConfigInvalid, match="source 'rows' cannot be drained"):
        job(place, ckpt.SparkSource("rate-micro-batch", {"rowsPerBatch": 1})).start(availableNow=True)


def test_rate_is_drained_up_to_now(place: Place) -> None:
    made = job(place, ckpt.SparkSource("rate", {"rowsPerSecond": 100}))
    ran_for(made, 1)
    run = job(place, ckpt.SparkSource("rate", {"rowsPerSecond": 100})).start(availableNow=True)
    assert run.awaitTermination(TIMEOUT_S)

    values = sorted(row["value"] for row in place.output())
    assert values == list(range(len(values)))
    assert values


def test_another_rate_is_another_input(place: Place) -> None:
    ran_for(job(place, ckpt.SparkSource("rate", {"rowsPerSecond": 100})), 1)
    with pytest.raises(SourceInvalid, match="rate had rowsPerSecond 100 and has 50 now"):
        job(place, ckpt.SparkSource("rate", {"rowsPerSecond": 50})).start()


def test_a_source_that_spark_cannot_stream_is_refused_at_once(place: Place) -> None:
    with pytest.raises(SourceInvalid, match="no-such-format"):
        place.job().source("rows", ckpt.SparkSource("no-such-format", replayable=True))
