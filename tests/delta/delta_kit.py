"""Real tables made with deltalake, and staged files as tasks write them, for the tests of Delta."""

from __future__ import annotations

import hashlib
import itertools
import json
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import EpochOutput, SinkContext, StagedFile

STORE = "0f1e2d3c"
_CLOCK = itertools.count()
"""Modification times, so that the files of a snapshot have the order in which they were made."""


def append(table: Path, files: list[list[int]], data_change: bool = True) -> int:
    """One commit that adds one file of `id` values per list, in that order; returns the version."""
    opened = DeltaTable(str(table))
    actions: list[Any] = []
    for ids in files:
        name = f"{uuid.uuid4().hex}.parquet"
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), table / name)
        size = (table / name).stat().st_size
        actions.append(AddAction(name, size, {}, next(_CLOCK), data_change, json.dumps({"numRecords": len(ids)})))
    opened.create_write_transaction(actions, "append", opened.schema())
    return DeltaTable(str(table)).version()


def context(incarnation: int = 1, sink: str = "out", store: str = STORE) -> SinkContext:
    """The publishing side of a job."""
    return SinkContext(job="job", sink=sink, store_id=store, incarnation=Incarnation(incarnation))


def stage(table: Path, rows: dict[str, list[Any]], incarnation: int = 1, **partition: str | None) -> StagedFile:
    """A Parquet file inside the table, named and laid out as a task does it."""
    folder = "".join(f"{name}={quote(value or '', safe='')}/" for name, value in partition.items())
    path = f"{folder}ckpt-out-i{incarnation}-b0-t0-0-{uuid.uuid4().hex}.parquet"
    (table / folder).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(rows), table / path)
    count = len(next(iter(rows.values())))
    return StagedFile(
        path=path,
        size_bytes=(table / path).stat().st_size,
        rows=count,
        lane=0,
        batch=0,
        task=0,
        part=0,
        partition_values=partition,
        stats=json.dumps({"numRecords": count}),
        sha256=hashlib.sha256((table / path).read_bytes()).hexdigest(),
    )


def output(
    table: Path, epoch: int, files: list[StagedFile], incarnation: int = 1, previous: int | None = None
) -> EpochOutput:
    """Return a committed epoch of the sink."""
    return EpochOutput(
        epoch=Epoch(epoch),
        incarnation=Incarnation(incarnation),
        previous=Epoch(epoch - 1 if previous is None else previous),
        root=str(table),
        storage_options={},
        files=files,
    )


def ids(table: Path) -> list[int]:
    """All values of column `id`, sorted."""
    return sorted(pa.table(DeltaTable(str(table)).scan(columns=["id"]).read_all()).column("id").to_pylist())
