"""Several event times in one job: the least of their watermarks applies, as in Spark, and a restart restores each of them."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections import Counter

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from runtime_kit import Bench, drain, manifest_of

import spark_ckpt as ckpt
from spark_ckpt.cli.app import exit_code

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

SCHEMA = "k string, v long, at timestamp"
WINDOW = "10 seconds"
DELAYS = {"fast": "5 seconds", "slow": "20 seconds"}
ROUNDS = [
    {"fast": [("a", 1, 101), ("b", 2, 102)], "slow": [("a", 3, 90)]},
    {"fast": [("a", 1, 300)], "slow": []},  # the slow one holds the watermark at 70
    {"fast": [("a", 4, 72), ("c", 1, 59)], "slow": [("b", 5, 81)]},  # c is late
    {"fast": [], "slow": [("b", 1, 200)]},  # the fast one's 295, from two runs ago, lets it advance to 180
    {"fast": [("a", 7, 103)], "slow": [("a", 8, 171)]},  # both late: an idle batch has advanced the watermark to 180
    {"fast": [("a", 9, 104), ("d", 1, 185)], "slow": [("b", 9, 82), ("e", 1, 160)]},  # a, b and e are late
]


def at(second: float) -> dt.datetime:
    return dt.datetime(2024, 7, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.schema = SCHEMA
    return bench


def put(bench: Bench, number: int) -> None:
    for name, rows in ROUNDS[number].items():
        if rows:
            bench.put(*[(key, value, at(second)) for key, value, second in rows], into=name)


class Sparks:
    """Spark's own aggregation over the union of both, with a watermark each."""

    def __init__(self, bench: Bench) -> None:
        inputs = [
            bench.spark.readStream.schema(SCHEMA).parquet(str(bench.input(name))).withWatermark("at", delay)
            for name, delay in DELAYS.items()
        ]
        summed = (
            inputs[0]
            .union(inputs[1])
            .groupBy("k", F.window("at", WINDOW))
            .agg(F.count("*").alias("n"), F.sum("v").alias("t"))
        )
        self.shown: Counter[tuple[object, ...]] = Counter()
        self._query = (
            summed.selectExpr("k", "cast(window.end as long)", "n", "t")
            .writeStream.foreachBatch(self._keep)
            .outputMode("update")
            .option("checkpointLocation", str(bench.folder / "sparks"))
            .start()
        )

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.shown.update(map(tuple, frame.collect()))

    def catch_up(self) -> None:
        self._query.processAllAvailable()

    def end(self) -> tuple[int, str]:
        """Number of its windows, and its watermark."""
        last = self._query.lastProgress
        self._query.stop()
        return int(last["stateOperators"][0]["numRowsTotal"]), last["eventTime"]["watermark"]


def summed(bench: Bench) -> ckpt.Run:
    job = bench.job(key_groups=3)
    fast, slow = (job.source(name, bench.source(name)).withWatermark("at", delay) for name, delay in DELAYS.items())
    summed = fast.union(slow).groupBy("k", F.window("at", WINDOW)).agg(name="summed", n=ckpt.count(), t=ckpt.sum("v"))
    summed.to(bench.sink(), name="out")
    return drain(job)


@pytest.mark.long
def test_a_union_of_two_event_times_has_sparks_watermark_also_after_restarts(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    sparks, late, last = Sparks(bench), 0, 0
    for number in range(len(ROUNDS)):
        put(bench, number)
        sparks.catch_up()
        run = summed(bench)
        manifest = manifest_of(bench, run.epochs()[-1].epoch)
        assert manifest["watermark_ms"] >= last, "it never goes back"
        last = manifest["watermark_ms"]
        late += run.lastProgress["totals"]["late"]
    windows, watermark = sparks.end()

    shown = Counter((row["k"], int(row["window"]["end"].timestamp()), row["n"], row["t"]) for row in bench.rows())
    assert shown == sparks.shown
    assert len(ckpt.read_state(str(bench.folder / "store"), "summed")) == windows
    assert late == 6
    assert dt.datetime.fromtimestamp(last / 1000, dt.UTC).isoformat(timespec="milliseconds")[:23] == watermark[:23]
    capsys.readouterr()
    store = str(bench.folder / "store")
    assert exit_code(["show", store, str(manifest["epoch"]), "--json"]) == 0
    (operator,) = json.loads(capsys.readouterr().out)["operators"]
    assert operator["watermarks_ms"] == {"fast": at(295).timestamp() * 1000, "slow": at(180).timestamp() * 1000}
    assert operator["late_rows"] == 3
    assert exit_code(["show", store, str(manifest["epoch"])]) == 0
    assert "late rows of the operator" in capsys.readouterr().out


def waited(bench: Bench) -> ckpt.Run:
    """Emit for every key the inputs that had rows, after its time has passed for both inputs."""

    def wait(key, frames, state):
        if state.hasTimedOut:
            yield key[0], *state.get
            state.remove()
            return
        heard = state.get if state.exists else (0, 0)
        state.update(tuple(old + len(frame) for old, frame in zip(heard, frames.values(), strict=True)))
        newest = max(frame["at" if name == "fast" else "time"].max() for name, frame in frames.items() if len(frame))
        state.setTimeoutTimestamp(int(newest.tz_localize("America/New_York").timestamp() * 1000) + 10_000)

    job = bench.job(key_groups=3)
    fast, slow = (job.source(name, bench.source(name)) for name in DELAYS)
    inputs = {
        "fast": fast.withWatermark("at", DELAYS["fast"]).groupBy("k"),
        "slow": slow.withColumnRenamed("at", "time").withWatermark("time", DELAYS["slow"]).groupBy("k"),
    }
    counts = "fast int, slow int"
    job.cogroup(inputs).applyInPandasWithState(
        wait, f"k string, {counts}", counts, "append", "EventTimeTimeout", name="waited"
    ).to(bench.sink(), name="out")
    return drain(job)


def test_a_key_of_two_inputs_waits_for_the_slower_one_and_late_rows_of_both_are_dropped(bench: Bench) -> None:
    bench.put(("a", 1, at(100)), into="fast")
    bench.put(("a", 1, at(101)), into="slow")
    waited(bench)
    bench.put(("z", 1, at(500)), into="fast")
    waited(bench)
    assert not (bench.folder / "out").exists() or bench.rows() == [], "the slow watermark is at 81"
    bench.put(("z", 1, at(600)), into="slow")
    waited(bench)  # rows are late by 81, keys by 495 from the next batch on
    bench.put(("b", 1, at(90)), ("z", 1, at(501)), into="fast")
    bench.put(("b", 1, at(82)), ("z", 1, at(499)), into="slow")
    run = waited(bench)
    late = manifest_of(bench, run.epochs()[-1].epoch)["operators"]["waited"]["late_rows"]

    assert bench.values() == [("a", 1, 1)]
    assert run.lastProgress["totals"]["late"] == 2 == late
