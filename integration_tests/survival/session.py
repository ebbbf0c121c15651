"""One SparkSession for cheap tests, inputs and outputs as files, and runs that end by themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt

SCHEMA = "k string, v long, n long"
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Place:
    """A folder of JSON lines as input, a store, a Delta table as output."""

    spark: SparkSession
    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def table(self) -> str:
        return str(self.folder / "table")

    def write(self, number: int, rows: Iterable[Mapping[str, object] | str]) -> None:
        """Write one more input file; strings are written unchanged."""
        folder = self.folder / "in"
        folder.mkdir(exist_ok=True)
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        hidden = folder / f".part-{number:04}.json"
        hidden.write_text("".join(line + "\n" for line in lines))
        hidden.rename(folder / f"part-{number:04}.json")

    def job(self, **settings: object) -> ckpt.Job:
        chosen = {"interval": "1 second", "key_groups": 4, "local_dir": self.folder} | settings
        return ckpt.Job(self.spark, "cheap", store=str(self.store), **chosen)

    def source(self, schema: str = SCHEMA, **settings: Any) -> FilesSource:
        (self.folder / "in").mkdir(exist_ok=True)
        return FilesSource(str(self.folder / "in"), "json", schema, **({"maxFilesPerTrigger": 1} | settings))

    def sink(self) -> DeltaSink:
        return DeltaSink(self.table)

    def output(self, table: str | None = None) -> list[dict[str, Any]]:
        """The table's live rows, read file by file, without Spark."""
        uris = DeltaTable(table or self.table).file_uris()
        return [row for uri in uris for row in pq.read_table(uri, partitioning=None).to_pylist()]


def sums(job: ckpt.Job, place: Place) -> ckpt.Stream:
    """Running count and sum per key, one output per input, to the table."""
    rows = job.source("rows", place.source())
    return (
        rows.groupBy("k").agg("each row", "sums", count=ckpt.count(), total=ckpt.sum("v")).to(place.sink(), name="out")
    )


def drained(job: ckpt.Job, restore: str | int = "latest") -> Any:
    """Run the job to the end of its input."""
    run = job.start(restore=restore, availableNow=True)
    assert run.awaitTermination(TIMEOUT_S), "the run does not end"
    return run
