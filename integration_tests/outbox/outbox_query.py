"""A windowed query over files, one file a batch, and its expected output, computed without Spark."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_ckpt.connector import Sink, SinkRows
from spark_ckpt.outbox.outbox import Outbox

BEGIN_S, WINDOW_S, DELAY_S, PER_FILE = 1_700_000_010, 30, 30, 40
FILES = range(4)
"""Input of most tests."""
Row = tuple[int, str, int, int]
"""Start of the window in seconds, key, number of rows, sum."""


def write_files(inbox: Path, files: range) -> None:
    """Write files of one minute each, in the order of their times."""
    inbox.mkdir(parents=True, exist_ok=True)
    for number in files:
        lines = [json.dumps({"k": k, "ts": at, "v": v}) for k, at, v in rows_of(number)]
        part = inbox.parent / f"{number}.part"
        part.write_text("\n".join(lines))
        os.utime(part, (BEGIN_S + number,) * 2)
        part.replace(inbox / f"f{number:03d}.json")


def rows_of(number: int) -> list[tuple[str, int, int]]:
    """Key, second and value of a file's rows."""
    return [
        (f"k{(number * 3 + row) % 7}", BEGIN_S + number * 60 + (row * 7) % 55, number * 100 + row)
        for row in range(PER_FILE)
    ]


def expected(files: range) -> Counter[Row]:
    """Every window that the watermark closes after the last file."""
    every = [row for number in files for row in rows_of(number)]
    watermark = max(at for _, at, _ in every) - DELAY_S
    groups: dict[tuple[int, str], list[int]] = {}
    for key, at, value in every:
        groups.setdefault((at // WINDOW_S * WINDOW_S, key), []).append(value)
    return Counter(
        (start, key, len(values), sum(values))
        for (start, key), values in groups.items()
        if start + WINDOW_S <= watermark
    )


def expected_keys(files: range) -> Counter[Row]:
    """Each key of each window once."""
    return Counter({(at // WINDOW_S * WINDOW_S, key, 1, 0): 1 for number in files for key, at, _ in rows_of(number)})


def windows(spark: SparkSession, inbox: Path) -> DataFrame:
    """Counts and sums per window and key, in append mode."""
    lines = spark.readStream.schema("k string, ts long, v long").option("maxFilesPerTrigger", 1).json(str(inbox))
    timed = lines.withColumn("at", F.timestamp_seconds("ts")).withWatermark("at", f"{DELAY_S} seconds")
    counted = timed.groupBy(F.window("at", f"{WINDOW_S} seconds"), "k").agg(
        F.count("*").alias("n"), F.sum("v").alias("s")
    )
    return counted.selectExpr("unix_seconds(window.start) AS w", "k", "n", "s")


class Place:
    """Folders of one query with an outbox."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inbox, self.store, self.checkpoint = folder / "in", str(folder / "store"), folder / "checkpoint"

    def outbox(self, sinks: Mapping[str, Sink | SinkRows], **settings: object) -> Outbox:
        """Return the outbox as a program makes it."""
        return Outbox(self.store, name="orders", checkpoint=str(self.checkpoint), sinks=sinks, **settings)  # type: ignore[arg-type]

    def table(self, name: str) -> str:
        return str(self.folder / name)

    def rows(self, name: str) -> Counter[Row]:
        """Rows of a Delta table, by its own log."""
        if not (self.folder / name / "_delta_log").exists():
            return Counter()
        found = DeltaTable(self.table(name)).to_pyarrow_table(columns=["w", "k", "n", "s"])
        return Counter(tuple(row.values()) for row in found.to_pylist())

    def staged(self, name: str) -> list[Path]:
        """Files that tasks have staged below a folder."""
        return [*(self.folder / name).rglob("ckpt-*-b*.parquet")]

    def rewind(self, batch: int) -> None:
        """Rewind the checkpoint to the end of `batch`, by hand."""
        for path in [*self.checkpoint.rglob("*")]:
            number = path.name.strip(".").split(".")[0]
            if not path.is_file() or not number.isdigit() or "metadata" in path.parts:
                continue
            newest = batch + 1 if "state" in path.relative_to(self.checkpoint).parts else batch
            if int(number) > newest:
                path.unlink()


def run(outbox: Outbox, rows: DataFrame, **confirmed: object) -> Exception | None:
    """Run the query over the present input. Return the error that ended it."""
    query = outbox.start(rows.writeStream.trigger(availableNow=True), **confirmed)  # type: ignore[arg-type]
    with suppress(StreamingQueryException):
        assert query.awaitTermination(300)
    outbox.close()
    return query.exception()
