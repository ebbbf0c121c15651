"""`DeltaSink` passes the conformance suite for sinks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from spark_ckpt_delta import DeltaSink

from spark_ckpt.testing import SinkConformance, SinkSubject


def rows(epoch: int) -> pa.Table:
    ids = range(epoch * 10, epoch * 10 + 4)
    return pa.table({"id": pa.array(ids, pa.int64()), "city": ["Oslo", "a/b=c%", "Oslo", None]})


def shown(table: Path) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(str(table)):
        return []
    found: list[dict[str, Any]] = pa.table(DeltaTable(str(table)).scan().read_all()).to_pylist()
    return found


class TestDeltaSink(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> SinkSubject:
        (tmp_path / "outbox").mkdir()
        table = tmp_path / "table"
        options = {"aws_secret_access_key": "hunter2"}
        return SinkSubject(
            make=lambda: DeltaSink(str(table), partition_by=["city"], storage_options=options),
            rows=rows,
            shown=lambda: shown(table),
            staged_in=tmp_path / "outbox",
            renew=lambda: shutil.rmtree(table),
            secrets=("hunter2",),
        )
