"""Input files through Spark's own reader, in Java. `FilesSource` starts a Python process for each source of each start, which
costs more processor time than the batches of most tests; its own tests are in integration_tests/files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_ckpt.connector import Cursor, Seed

_COMPACTED = 10
"""Number of entries in one compact file of Spark's log of files."""


@dataclass(frozen=True)
class SparksFiles:
    """Implements `spark_ckpt.connector.Source`: Parquet files of `folder`, one in a batch, in the order of their names.

    Their times are in the same order. `schema` is DDL.
    """

    folder: Path
    schema: str

    def check(self, spark: SparkSession) -> None: ...

    def start(self, spark: SparkSession) -> Cursor:
        return {"count": 0}

    def read(self, spark: SparkSession, cursor: Cursor) -> DataFrame:
        return spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).parquet(str(self.folder))

    def seed(self, cursor: Cursor) -> Seed | None:
        """Return Spark's log of the files that were read."""
        count = int(str(cursor["count"]))
        if count == 0:
            return None
        entries = [self._entry(number, path) for number, path in enumerate(self._files()[:count])]
        files = {}
        for number in range(count):
            is_compact = (number + 1) % _COMPACTED == 0
            named = entries[: number + 1] if is_compact else entries[number : number + 1]
            files[f"{number}.compact" if is_compact else str(number)] = "\n".join(["v1", *named])
        return Seed(json.dumps({"logOffset": count - 1}), files)

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        return {"count": int(json.loads(offset)["logOffset"]) + 1}

    def end(self, spark: SparkSession) -> Cursor:
        return {"count": len(self._files())}

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        return int(str(cursor["count"])) >= int(str(end["count"]))

    def describe(self) -> Mapping[str, str]:
        return {"kind": "sparks files"}

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.parquet"))

    def _entry(self, number: int, path: Path) -> str:
        return json.dumps({"path": path.as_uri(), "timestamp": path.stat().st_mtime_ns // 10**6, "batchId": number})
