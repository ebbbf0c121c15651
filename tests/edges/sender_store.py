"""The store of a sending job: epochs with rows of an edge, without Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from spark_ckpt.epochs.records import Holder, Manifest, StagedFileRecord, StagedOutput
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.store.store import Store
from spark_ckpt.tasks.rows import arrow_schema

EDGE = "totals"
ELSEWHERE = Holder(host="another-host", boot_id="b", pid=1, pid_start=1, name="test")
Rows = Sequence[dict[str, object]]


class SendingStore:
    """Job "orders" with the edge `totals`."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(str(folder), "orders")
        self.number = 0
        self.declare(id=LongType(), name=StringType())
        self.begin("latest")

    def declare(self, **columns: DataType) -> None:
        self.schema = StructType([StructField(name, kind) for name, kind in columns.items()])
        self.store.staged(EDGE).declare(self.schema.json())

    def begin(self, restore: str | int) -> None:
        self.point = self.store.log.begin_incarnation(ELSEWHERE, restore, takeover=True)
        self.base = self.point.manifest.epoch

    def rows(self, count: int) -> Rows:
        """New rows, each used once."""
        first = self.number
        self.number += count
        return [{"id": number, "name": f"name {number}"} for number in range(first, self.number)]

    def commit(self, *files: Rows) -> int:
        """Commit an epoch with one file for each argument."""
        state = self.store.log.state()
        staged = tuple(self._staged(number, rows) for number, rows in enumerate(files))
        manifest = Manifest(
            job="orders",
            epoch=state.last + 1,
            incarnation=state.incarnation,
            attempt=uuid.uuid4().hex,
            base=self.base,
            previous=state.last,
            created_ms=1_700_000_000_000,
            outputs={EDGE: StagedOutput(sink=EDGE, files=staged, rows=sum(file.rows for file in staged))},
            rows_before=self.store.log.manifest(self.base).rows_so_far if self.base else {},
        )
        self.store.log.commit_epoch(manifest)
        self.base = manifest.epoch
        return manifest.epoch

    def retain(self, keep_last: int = 1) -> None:
        """Delete epochs as if all were published and there were no reader."""
        self.store.log.shorten(lambda state: set(sorted(state.by_id)[-keep_last:]))
        self.store.retain(Retention(keep_last))

    def files(self, epoch: int) -> list[Path]:
        table = self.store.staged(EDGE)
        assert table.location.local is not None
        return [table.location.local / file.path for file in table.staged(self.store.log.manifest(epoch))]

    def _staged(self, number: int, rows: Rows) -> StagedFileRecord:
        incarnation = self.store.log.state().incarnation
        path = f"ckpt-{EDGE}-i{incarnation}-b0-t{number}-0-{uuid.uuid4().hex}.parquet"
        table = pa.Table.from_pylist(list(rows), arrow_schema(self.schema))
        size, sha256 = self.store.staged(EDGE).location.write_table(path, table)
        stats = json.dumps({"numRecords": len(rows)})
        return StagedFileRecord(
            path=path, size_bytes=size, rows=len(rows), lane=0, batch=0, task=number, part=0, stats=stats, sha256=sha256
        )
