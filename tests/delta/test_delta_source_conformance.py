"""`DeltaSource` passes the conformance suite for sources."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from delta_kit import append
from deltalake import DeltaTable
from spark_ckpt_delta import DeltaSource

from spark_ckpt.testing import PythonReading, SourceConformance, SourceSubject


@pytest.mark.parametrize(("start", "files_per_batch"), [("earliest", 1), (0, 256)])
class TestDeltaSource(SourceConformance):
    @pytest.fixture
    def subject(self, table: Path, files_per_batch: int, start: str | int) -> SourceSubject:
        numbers = itertools.count(step=10)

        def add() -> Sequence[dict[str, object]]:
            first = next(numbers)
            append(table, [[first, first + 1], [first + 2]])
            return [{"id": first + k} for k in range(3)]

        def lose() -> None:
            """Delete the oldest data file; the table's log still names it."""
            files = sorted(table.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
            files[0].unlink()

        def renew() -> None:
            schema = DeltaTable(str(table)).schema()
            shutil.rmtree(table)
            DeltaTable.create(str(table), schema=schema)

        return SourceSubject(
            make=lambda: DeltaSource(
                str(table),
                start=start,  # type: ignore[arg-type]
                maxFilesPerTrigger=files_per_batch,
                storage_options={"aws_secret_access_key": "hunter2"},
            ),
            add=add,
            reading=PythonReading(),
            lose=lose,
            renew=renew,
            secrets=("hunter2",),
        )
