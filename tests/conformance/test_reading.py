"""Python data sources of every kind run without a JVM as in Spark; any other stream is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from memory_source import INPUTS, Input, MemoryData, MemoryReader, MemorySource, subject
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from spark_ckpt.connector import Cursor
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.testing import PythonReading, SourceConformance, SourceSubject


class SimpleReader(SimpleDataSourceStreamReader):
    def __init__(self, name: str, at: int) -> None:
        self.name, self.at = name, at

    def initialOffset(self) -> dict[str, Any]:
        return {"at": self.at}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[Any, ...]], dict[str, Any]]:
        end = {"at": len(INPUTS[self.name].rows)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        rows = INPUTS[self.name].rows[start["at"] : end["at"]]
        if None in rows:
            raise ValueError("a row is gone")
        return iter([(row,) for row in rows])


class SimpleData(MemoryData):
    streamReader = DataSource.streamReader  # noqa: N815 - Spark's name: not overridden

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return SimpleReader(self.options["input"], int(self.options["at"]))


class SimpleSource(MemorySource):
    data = SimpleData

    def limited(self, rows: int) -> MemorySource | None:
        return None


class ReaderWithoutLimits(MemoryReader):
    """A reader as before Spark 4.2."""

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        return {"at": len(self.rows)}


class DataWithoutLimits(MemoryData):
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ReaderWithoutLimits(self.options["input"], int(self.options["at"]), 0)


class SourceWithoutLimits(SimpleSource):
    data = DataWithoutLimits


@pytest.mark.parametrize("source", [SimpleSource, SourceWithoutLimits])
class TestSourcesOfEveryKind(SourceConformance):
    @pytest.fixture
    def subject(self, source: type[MemorySource]) -> SourceSubject:
        return subject(source)


def test_the_limit_of_a_reader_is_applied() -> None:
    INPUTS["bounded"] = Input([1, 2, 3, 4, 5])

    batches = PythonReading().batches(MemorySource("bounded", limit=2), {"kind": "memory", "at": 0})

    assert [[row["n"] for row in batch.rows] for batch in batches] == [[1, 2], [3, 4], [5]]


def test_a_stream_without_a_python_data_source_is_refused() -> None:
    class Other(MemorySource):
        def read(self, spark: Any, cursor: Cursor) -> Any:
            return object()

    with pytest.raises(ConfigInvalid, match=r"Other\.read"):
        PythonReading().batches(Other("x"), {})


def test_the_suite_is_imported_without_pytest() -> None:
    code = "import sys, spark_ckpt.testing; sys.exit('pytest' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
