"""Parquet files whose dates and times Spark wrote in its old calendar are refused where Arrow would read other ones."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import spark_ckpt_delta.reading as of_delta
from files_kit import settings_of
from spark_ckpt_delta.log import TableFile
from spark_ckpt_files.listing import Directory
from spark_ckpt_files.reading import read_file

from spark_ckpt.errors import SourceInvalid

DAY, INSTANT = pa.date32(), pa.timestamp("us", "UTC")
OLD_DAY, OLD_TIME = dt.date(1582, 10, 14), dt.datetime(1899, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
FIRST_DAY, FIRST_TIME = dt.date(1582, 10, 15), dt.datetime(1900, 1, 1, tzinfo=dt.UTC)
LEGACY = [
    {"org.apache.spark.version": "2.4.8"},
    {"org.apache.spark.version": "4.2.0", "org.apache.spark.legacyDateTime": ""},
]


pytestmark = pytest.mark.parametrize("connector", ["files", "delta"])


def read(
    connector: str, folder: Path, kind: pa.DataType, value: Any, footer: dict[str, str], **options: Any
) -> list[Any]:
    """Write a null and the value, and return what the connector reads."""
    table = pa.table({"x": pa.array([None, value], kind)}).replace_schema_metadata(footer)
    pq.write_table(table, folder / "f.parquet", **options)
    directory, schema = Directory(str(folder)), pa.schema([("x", kind)])
    (file,) = directory.files()
    system = pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())
    batches = (
        read_file(directory, file, settings_of(folder, format="parquet"), schema)
        if connector == "files"
        else of_delta.read_file(system, "table", TableFile("f.parquet", file.size, ()), schema, "UTC")
    )
    return [row["x"] for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("footer", LEGACY)
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (DAY, OLD_DAY),
        (INSTANT, OLD_TIME),
        (pa.timestamp("us"), OLD_TIME.replace(tzinfo=None)),
        (pa.list_(DAY), [FIRST_DAY, OLD_DAY]),
        (pa.struct([("at", INSTANT)]), {"at": OLD_TIME}),
        (pa.map_(pa.string(), DAY), [("k", OLD_DAY)]),
    ],
    ids=str,
)
def test_a_value_that_arrow_would_misread_is_refused(connector, kind, value, footer, tmp_path: Path) -> None:
    with pytest.raises(SourceInvalid, match=r"calendar of Spark before 3\.0: x"):
        read(connector, tmp_path, kind, value, footer)


@pytest.mark.parametrize("footer", [*LEGACY, {}])
@pytest.mark.parametrize(("kind", "value"), [(DAY, FIRST_DAY), (INSTANT, FIRST_TIME)], ids=str)
def test_later_values_are_read_from_any_file(connector, kind, value, footer, tmp_path: Path) -> None:
    assert read(connector, tmp_path, kind, value, footer) == [None, value]


@pytest.mark.parametrize("footer", [{}, {"org.apache.spark.version": "3.5.0"}])
@pytest.mark.parametrize(("kind", "value"), [(DAY, OLD_DAY), (INSTANT, OLD_TIME)], ids=str)
def test_files_in_todays_calendar_may_have_any_value(connector, kind, value, footer, tmp_path: Path) -> None:
    assert read(connector, tmp_path, kind, value, footer) == [None, value]


@pytest.mark.parametrize(("version", "refused"), [("3.0.3", True), ("3.1.0", False)])
def test_int96_times_have_a_rule_of_their_own(connector: str, version: str, refused: bool, tmp_path: Path) -> None:
    def found() -> list[Any]:
        footer = {"org.apache.spark.version": version}
        return read(connector, tmp_path, INSTANT, OLD_TIME, footer, use_deprecated_int96_timestamps=True)

    if refused:
        with pytest.raises(SourceInvalid, match="calendar") as caught:
            found()
        # Spark's source converts; a file is written again by the setting of its type of times.
        assert ("int96RebaseModeInWrite" if connector == "files" else "SparkSource") in (caught.value.hint or "")
    else:
        assert found() == [None, OLD_TIME]
