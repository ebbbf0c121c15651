"""Session settings that change types, names, layouts or limits: the output is that of the default settings, or a typed error."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState
from spark_ckpt_delta import DeltaSink

import spark_ckpt as ckpt
from integration_tests.campaign.hazards.site import FileJob, Site, table_rows
from integration_tests.campaign.hazards.trials import Drawn
from integration_tests.campaign.hazards.verdicts import Rows, Scene, Way
from spark_ckpt.errors import CkptError

UTC_DAY = "date_from_unix_date(CAST(floor(unix_micros(CAST(at AS TIMESTAMP_LTZ)) / 86400000000) AS INT))"
"""The day of a time in UTC: `to_date` follows the session's time zone, as Spark promises."""

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
ARROW, DELTA = "spark.sql.execution.arrow", "spark.databricks.delta.properties.defaults"
SETTINGS: Sequence[Mapping[str, str]] = [
    {f"{ARROW}.useLargeVarTypes": "true"},
    {"spark.sql.ansi.enabled": "false"},
    {"spark.sql.caseSensitive": "true"},
    {"spark.sql.session.timeZone": "America/New_York"},
    {"spark.sql.session.timeZone": "Asia/Kathmandu"},
    {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
    {f"{ARROW}.maxRecordsPerBatch": "1"},
    {f"{ARROW}.maxRecordsPerBatch": "0"},
    {f"{ARROW}.maxBytesPerBatch": "1"},
    {"spark.sql.streaming.stateStore.providerClass": ROCKS},
    {
        "spark.sql.streaming.stateStore.providerClass": ROCKS,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
    {"spark.sql.shuffle.partitions": "1"},
    {"spark.sql.shuffle.partitions": "7"},
    {"spark.sql.adaptive.enabled": "false"},
    {"spark.sql.codegen.wholeStage": "false"},
    {"spark.sql.parquet.outputTimestampType": "INT96"},
    {"spark.sql.parquet.compression.codec": "zstd"},
    {"spark.sql.legacy.timeParserPolicy": "LEGACY"},
    {"spark.sql.datetime.java8API.enabled": "true"},
    {"spark.sql.storeAssignmentPolicy": "LEGACY"},
    {"spark.sql.execution.pandas.structHandlingMode": "row"},
    {"spark.sql.execution.pandas.convertToArrowArraySafely": "true"},
    {"spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "false"},
    {"spark.sql.decimalOperations.allowPrecisionLoss": "false"},
    {"spark.sql.streaming.noDataMicroBatches.enabled": "false"},
    {"spark.sql.streaming.minBatchesToRetain": "2"},
    {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"},
    {"spark.sql.execution.pythonUDF.arrow.enabled": "true"},
    {f"{ARROW}.pyspark.selfDestruct.enabled": "true"},
    {"spark.sql.optimizer.maxIterations": "1"},
    {f"{DELTA}.columnMapping.mode": "name"},
    {f"{DELTA}.enableDeletionVectors": "true"},
    {f"{DELTA}.enableChangeDataFeed": "true"},
    {"spark.databricks.delta.schema.autoMerge.enabled": "true"},
    {"spark.databricks.delta.optimizeWrite.enabled": "true"},
]
DATA = 2
"""Different inputs. The output of each with the default settings is computed once in a campaign."""
SCHEMA = "k string, K2 string, n long, d decimal(10,2), at timestamp, b boolean, x double, tags array<string>"
STATE = "seen string, raw binary, total decimal(20,2)"


def fold(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[tuple[object, ...]]:
    """Strings, bytes and decimals in state. Rows of a key come in any order within a batch, so strings are counted, not joined."""
    seen, raw, total = state.get if state.exists else ("", b"", 0)
    for frame in frames:
        for row in frame.itertuples():
            seen, raw, total = seen + "x", bytes(raw) + b"\x00", total + row.d
    state.update((seen, raw, total))
    yield key[0], seen, raw, total


class Setting(Scene):
    """State in pandas with unchanged rows, or totals with a merged table, for two drains; the setting is on in one or both."""

    def __init__(self, site: Site, folder: Path, draw: random.Random, conf: Mapping[str, str]) -> None:
        self._in = draw.choice(((True, True), (False, True), (True, False)))
        shown = ", ".join(
            f"{name.removeprefix('spark.sql.')}={value.rpartition('.')[2]}" for name, value in conf.items()
        )
        self.kind = shown
        self._site, self._conf = site, conf
        same = random.Random(draw.randrange(DATA))
        self._rows = [[self._row(same, 20 * file + n) for n in range(same.randint(3, 20))] for file in range(4)]
        self._wanted: Rows = Counter()
        self._sinks = draw.choice((("state", "plain"), ("totals", "merged")))
        self._undisturbed = site.known.setdefault(f"odd settings {self._sinks} {self._rows}", [])
        self._before = {name: site.spark.conf.get(name, None) for name in conf}
        self._folder = folder
        self._job = self._new("odd")
        self._drained = 0
        self._casts = False

    def _new(self, name: str) -> FileJob:
        folder = self._folder / name
        folder.mkdir()
        job = FileJob(
            self._site, folder, SCHEMA, lambda rows: self._describe(rows, folder), source={"maxFilesPerTrigger": 9}
        )
        job.settings = {"interval": "1 second"}
        return job

    def _row(self, draw: random.Random, number: int) -> dict[str, Any]:
        at = f"2024-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}T{draw.randint(0, 23):02}:30:00.{draw.randint(0, 999999):06}Z"
        return {
            "k": draw.choice(("a", "b", "ü", "")), "K2": draw.choice((None, "x", "long " * 50)), "n": number,
            "d": f"{draw.randint(-(10**7), 10**7) / 100:.2f}", "at": draw.choice((None, at)),
            "b": draw.choice((True, False, None)), "x": draw.choice((0.1, -0.0, 1e300, None)),
            "tags": draw.choice((None, [], ["a", None, "b"])),
        }  # fmt: skip

    def _describe(self, rows: ckpt.Stream, folder: Path) -> None:
        if self._casts:
            rows = rows.withColumn("at", F.expr("CAST(at AS TIMESTAMP_LTZ)"))
        if "state" in self._sinks:
            self._describe_state(rows, folder)
        else:
            self._describe_totals(rows, folder)

    def _describe_state(self, rows: ckpt.Stream, folder: Path) -> None:
        state = rows.groupBy("k").applyInPandasWithState(
            fold, "k string, seen string, raw binary, total decimal(20,2)", STATE, "append", "NoTimeout"
        )
        state.to(DeltaSink(str(folder / "state")), name="state")
        plain = rows.withColumn("raw", F.col("k").cast("binary")).withColumn("day", F.expr(UTC_DAY))
        plain.to(DeltaSink(str(folder / "plain")), name="plain")

    def _describe_totals(self, rows: ckpt.Stream, folder: Path) -> None:
        totals = rows.groupBy("K2").agg(
            outputMode="update",
            name="totals",
            n=ckpt.count(),
            last=ckpt.max("at"),
            sum=ckpt.sum("d"),
            most=ckpt.max("k"),
        )
        totals.to(DeltaSink(str(folder / "totals")), name="totals")
        rows.select("n", "k", "at").to(DeltaSink(str(folder / "merged"), engine="spark", keys=["n"]), name="merged")

    def act(self) -> None:
        if not self._undisturbed:
            undisturbed = self._new("undisturbed")
            for drain in range(2):
                self._feed(undisturbed, drain)
                undisturbed.drain()
            self._undisturbed.append(self._read(self._folder / "undisturbed"))
        self._wanted = self._undisturbed[0]
        for drain in range(2):
            self._set(self._in[drain])
            self._feed(self._job, drain)
            self._drained = drain + 1
            self._job.drain()

    def _feed(self, job: FileJob, drain: int) -> None:
        for rows in self._rows[2 * drain : 2 * drain + 2]:
            job.write(rows)

    def _set(self, odd: bool) -> None:
        for name, value in self._conf.items():
            before = self._before[name]
            if odd:
                self._site.spark.conf.set(name, value)
            elif before is None:
                self._site.spark.conf.unset(name)
            else:
                self._site.spark.conf.set(name, before)

    def wanted(self) -> Rows:
        return self._wanted

    def visible(self) -> Rows:
        return self._read(self._folder / "odd")

    def _read(self, folder: Path) -> Rows:
        found: Rows = Counter()
        for name, columns in {
            "state": ("k", "seen", "raw", "total"),
            "totals": ("K2", "n", "last", "sum", "most"),
            "plain": ("k", "K2", "n", "d", "at", "b", "x", "tags", "raw", "day"),
            "merged": ("n", "k", "at"),
        }.items():
            found.update((name, *map(repr, row)) for row in table_rows(folder / name, columns))
        return found

    def ways(self) -> Sequence[Way]:
        def unset(error: CkptError, found: Any) -> None:
            self._set(False)
            self._finish()

        def cast(error: CkptError, found: Any) -> None:
            self._casts = True
            self._finish()

        says = "|".join(name.replace(".", r"\.") for name in self._conf)
        return [Way("set the setting back", says, unset), Way("cast the column", r"cast the columns", cast)]

    def _finish(self) -> None:
        """Drain the present input, then the rest of the input."""
        self._job.drain()
        if self._drained == 1:
            self._feed(self._job, 1)
            self._drained = 2
            self._job.drain()

    def close(self) -> None:
        self._set(False)


def _setting(site: Site, folder: Path, draw: random.Random, conf: Mapping[str, str]) -> Scene:
    return Setting(site, folder, draw, conf)


SCENES: Sequence[Drawn] = [partial(_setting, conf=conf) for conf in SETTINGS]
