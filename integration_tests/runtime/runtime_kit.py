"""Shared by the tests of the public API: input files, a job on them, its output."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from _pytest.mark import ParameterSet
from deltalake import DeltaTable, QueryBuilder
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource
from sparks_files import SparksFiles

import spark_ckpt as ckpt
from spark_ckpt.store.store import Store
from spark_ckpt.tasks.rows import arrow_schema

ZONE = "America/New_York"
FIRST_S = 1_700_000_000
ENOUGH_S = 120.0
"""Longest wait for an event that takes a few seconds on an idle machine."""

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder


def some(cases: Mapping[str, object], *in_gate: str) -> list[ParameterSet]:
    """Return the cases as parameters; those outside of `in_gate` are long tests."""
    return [
        pytest.param(case, id=name, marks=() if name in in_gate else pytest.mark.long) for name, case in cases.items()
    ]


@dataclass
class Bench:
    """One job's surroundings. `schema` is DDL of the input's columns."""

    spark: SparkSession
    folder: Path
    schema: str = "k string, v long"
    number: int = 0
    names: dict[str, None] = field(default_factory=dict)

    def input(self, name: str = "in") -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def put(self, *rows: Sequence[object], into: str = "in", schema: str | None = None) -> None:
        """Write one more input file. A row is a tuple in the schema's order."""
        columns = arrow_schema(StructType.fromDDL(schema or self.schema))
        values = zip(*rows, strict=True) if rows else [()] * len(columns)
        arrays = [pa.array(each, at.type) for each, at in zip(values, columns, strict=True)]
        self.number += 1
        fresh = self.folder / "fresh"
        pq.write_table(pa.table(arrays, schema=columns), fresh)
        os.utime(
            fresh, (FIRST_S + self.number,) * 2
        )  # Spark's own source orders files by time, and could swap two files of the same ms
        fresh.rename(self.input(into) / f"{self.number:05}.parquet")

    def put_lines(self, *lines: str, into: str = "in") -> None:
        """Write one more file of JSON texts."""
        self.number += 1
        fresh = self.folder / "fresh"
        fresh.write_text("".join(line + "\n" for line in lines))
        fresh.rename(self.input(into) / f"{self.number:05}.json")

    def source(self, name: str = "in", schema: str | None = None) -> SparksFiles:
        return SparksFiles(self.input(name), schema or self.schema)

    def files_source(self, name: str = "in", **options: object) -> FilesSource:
        return FilesSource(str(self.input(name)), "parquet", self.schema, **{"maxFilesPerTrigger": 1, **options})

    def sink(self, name: str = "out", **options: object) -> DeltaSink:
        return DeltaSink(str(self.folder / name), **options)

    def job(self, **settings: object) -> ckpt.Job:
        options = {"interval": "1 hour", "trigger": "10 ms", "key_groups": 4} | settings
        return ckpt.Job(self.spark, "job", str(self.folder / "store"), **options)

    def store(self) -> Store:
        return Store.open(str(self.folder / "store"), "job")

    def rows(self, name: str = "out") -> list[dict[str, object]]:
        """Rows that a reader of the output table sees, after file skipping."""
        table = DeltaTable(str(self.folder / name))
        found = QueryBuilder().register("t", table).execute("select * from t").read_all()
        return pa.table(found).to_pylist()

    def values(self, name: str = "out") -> list[tuple[object, ...]]:
        return sorted((tuple(row.values()) for row in self.rows(name)), key=repr)


def drain(job: ckpt.Job, restore: str | int = "latest") -> ckpt.Run:
    """Run to the end of the present input, until all is published."""
    run = job.start(restore=restore, availableNow=True)
    assert run.awaitTermination(ENOUGH_S), "the run has not ended"
    return run


def progress_totals(run: ckpt.Run) -> Mapping[str, int]:
    last = run.lastProgress
    assert last is not None
    return dict(last["totals"])


class Heard(ckpt.RunListener):
    """Keeps the events of a run; `wait` blocks until an event has happened often enough."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object]] = []
        self._news = threading.Condition()

    def _hear(self, what: str, event: object) -> None:
        with self._news:
            self.events.append((what, event))
            self._news.notify_all()

    def onIncarnationStarted(self, event: ckpt.IncarnationEvent) -> None:
        self._hear("started", event)

    def onEpochCommitted(self, event: ckpt.EpochEvent) -> None:
        self._hear("committed", event)

    def onEpochAborted(self, event: ckpt.EpochEvent) -> None:
        self._hear("aborted", event)

    def onEpochPublished(self, event: ckpt.EpochEvent) -> None:
        self._hear("published", event)

    def onIncarnationEnded(self, event: ckpt.IncarnationEvent) -> None:
        self._hear("ended", event)

    def of(self, what: str) -> list[object]:
        return [event for kind, event in self.events if kind == what]

    def wait(self, what: str, times: int = 1) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len(self.of(what)) >= times, ENOUGH_S), f"no event {what}"


def add_up(key, frames, state):
    """Running total per key: one row per call."""
    total = (state.get[0] if state.exists else 0) + sum(int(frame["v"].sum()) for frame in frames)
    state.update((total,))
    yield (key[0], total)


def totals(stream, name: str = "totals"):
    """The stream's running totals by `k`."""
    return stream.groupBy("k").applyInPandasWithState(
        add_up, "k string, total long", "total long", "append", "NoTimeout", name
    )


def latest(rows) -> dict[object, object]:
    """The greatest total of every key."""
    best: dict[object, object] = {}
    for key, total in rows:
        best[key] = max(best.get(key, 0), total)
    return best


def manifest_of(bench: Bench, epoch: int) -> dict[str, object]:
    """An epoch's manifest as plain data."""
    return json.loads(bench.store().log.manifest(epoch).model_dump_json())
