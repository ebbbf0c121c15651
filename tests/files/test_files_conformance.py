"""`FilesSource` passes the conformance suite for sources."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from spark_ckpt_files import FilesSource, source

from spark_ckpt.testing import PythonReading, SourceConformance, SourceSubject

SCHEMA = StructType([StructField("id", LongType()), StructField("name", StringType())])


def feed(folder: Path) -> Callable[[], Sequence[dict[str, object]]]:
    """Return a function that adds two files per call, later than all before."""
    numbers = itertools.count()

    def add() -> Sequence[dict[str, object]]:
        rows = []
        for number in itertools.islice(numbers, 2):
            fresh = [{"id": number * 10 + k, "name": f"name {k}"} for k in range(3)]
            path = folder / f"{number:03}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in fresh))
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
            rows += fresh
        return rows

    return add


@pytest.mark.parametrize(("clean", "files_per_batch"), [("delete", 1), ("off", 256)])
class TestFilesSource(SourceConformance):
    @pytest.fixture
    def subject(
        self, tmp_path: Path, files_per_batch: int, clean: str, monkeypatch: pytest.MonkeyPatch
    ) -> SourceSubject:
        monkeypatch.setattr(source, "session_zone", lambda spark: "UTC")  # a JVM spells the zone
        return SourceSubject(
            make=lambda: FilesSource(
                str(tmp_path),
                "json",
                SCHEMA,
                maxFilesPerTrigger=files_per_batch,
                cleanSource=clean,  # type: ignore[arg-type]
            ),
            add=feed(tmp_path),
            reading=PythonReading(),
            lose=lambda: (tmp_path / "000.json").unlink(),
        )
