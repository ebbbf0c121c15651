"""Files in a location appear whole or not at all, stay inside it, and are durable when a write returns."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)  # fmt: skip

from spark_ckpt.epochs.names import valid_name
from spark_ckpt.errors import ConfigInvalid, EpochDamaged, StoreIoFailed, StoreOutage, StoreUnreachable
from spark_ckpt.store import durable
from spark_ckpt.store.ddl import arrow_schema, column_names
from spark_ckpt.store.location import Location
from spark_ckpt.store.spark_state import IndexedFile
from spark_ckpt.tasks.rows import arrow_schema as sparks_schema

TABLE = pa.table({"k": ["a", "b"], "v": [1, 2]})


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return Location(str(tmp_path / "place"))


def test_a_file_is_invisible_before_close(location: Location) -> None:
    output = location.open_output("f.bin")
    output.write(b"x" * 10)
    assert location.size("f.bin") is None
    output.close()
    assert (location.read_bytes("f.bin"), output.tell()) == (b"x" * 10, 10)


def test_an_error_inside_with_leaves_nothing(location: Location) -> None:
    with pytest.raises(RuntimeError), location.open_output("f.bin") as output:
        output.write(b"x")
        raise RuntimeError
    assert location.list() == []


def test_a_write_that_fails_leaves_the_file_that_it_was_to_replace(location: Location) -> None:
    location.write_bytes("f.bin", b"older")
    with pytest.raises(RuntimeError), location.open_output("f.bin") as output:
        output.write(b"x")
        raise RuntimeError
    assert location.read_bytes("f.bin") == b"older"
    assert [info.path for info in location.list()] == ["f.bin"]


def test_an_unclosed_output_leaves_no_file(location: Location) -> None:
    location.open_output("f.bin").write(b"x")
    gc.collect()
    assert location.list() == []


def test_abort_after_close_removes_the_file(location: Location) -> None:
    output = location.open_output("f.bin")
    output.close()
    output.abort()
    assert location.list() == []


def test_a_parquet_writer_accepts_an_output(location: Location) -> None:
    output = location.open_output("deep/er/f.parquet")
    with pq.ParquetWriter(output, TABLE.schema) as writer:
        writer.write_table(TABLE)
    size = output.tell()
    output.close()
    assert location.size("deep/er/f.parquet") == size
    assert location.read_table("deep/er/f.parquet").equals(TABLE)


def test_tables_can_be_read_in_parts(location: Location) -> None:
    output = location.open_output("f.parquet")
    pq.write_table(TABLE, output, row_group_size=1)
    output.close()
    assert location.read_table("f.parquet", columns=["v"], row_groups=[1]).to_pydict() == {"v": [2]}
    assert location.read_table("f.parquet", row_groups=[]).num_rows == 0


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_types_that_parquet_widens_keep_their_seal(location: Location, unit: str) -> None:
    table = pa.table({"t": pa.array([1, None], pa.timestamp(unit, "UTC"))})
    location.write_table("f.parquet", table)
    assert location.read_table("f.parquet").num_rows == 2


def test_missing_and_unreadable_files_have_typed_answers(location: Location) -> None:
    assert location.size("f") is None
    assert location.list("nowhere") == []
    location.delete(["f"])
    with pytest.raises(FileNotFoundError):
        location.read_bytes("f")
    with pytest.raises(EpochDamaged, match="f is missing"):
        location.read_table("f")
    location.write_bytes("g", b"not parquet")
    with pytest.raises(EpochDamaged, match="cannot be read"):
        location.read_table("g")


def test_reading_creates_nothing(location: Location, tmp_path: Path) -> None:
    location.list()
    location.size("x")
    assert list(tmp_path.iterdir()) == []


def test_a_download_leaves_a_file_that_is_there_already(location: Location, tmp_path: Path) -> None:
    location.write_bytes("f.bin", b"new")
    digest = hashlib.sha256(b"new").hexdigest()
    file = IndexedFile(path="f.bin", place="0/f.bin", size_bytes=3, sha256=digest)
    target = tmp_path / "target"
    target.write_bytes(b"older")
    with pytest.raises(StoreOutage):
        location.download(file, target)
    assert target.read_bytes() == b"older"
    target.unlink()
    location.write_bytes("f.bin", b"bad")
    with pytest.raises(EpochDamaged):
        location.download(file, target)
    assert not target.exists()


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a\\b", "a\0b"])
def test_paths_stay_inside(location: Location, path: str) -> None:
    for action in (location.read_bytes, location.size, location.open_output, location.read_table):
        with pytest.raises(ConfigInvalid):
            action(path)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "-x", "a b", "x" * 129, "é"])
def test_names_are_checked_before_they_become_folders(location: Location, name: str) -> None:
    with pytest.raises(ConfigInvalid):
        location.child(name)
    with pytest.raises(ConfigInvalid):
        valid_name("sink", name)


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "0", "x" * 128])
def test_ordinary_names_are_accepted(name: str) -> None:
    assert valid_name("sink", name) == name


def test_locations_are_equal_and_travel(location: Location) -> None:
    location.write_bytes("f", b"1")
    copy = pickle.loads(pickle.dumps(location))
    assert copy == location
    assert hash(copy) == hash(location)
    assert copy.read_bytes("f") == b"1"


def test_relative_and_file_uris_name_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Location("x") == Location(str(tmp_path / "x")) == Location(f"file://{tmp_path}/x")


def test_a_folder_that_cannot_be_written_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnreachable) as caught:
        Location(str(tmp_path / "file")).write_bytes("x", b"1")
    assert "\n   0:" not in str(caught.value)


def test_a_failed_fsync_fails_the_write(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    location.write_bytes("before", b"1")

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StoreIoFailed):
        location.write_bytes("after", b"1")


def test_writing_syncs_contents_then_folder(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(durable, "on_step", lambda what, path: steps.append(f"{what} {Path(path).name}"))
    monkeypatch.setattr(durable, "durable_folders", set())
    location.write_bytes("a/f", b"1")
    assert steps == ["mkdir a", "put f", "fsync f", "sync-folder a"]


@pytest.mark.parametrize(
    ("ddl", "names"),
    [
        ("k STRING", ["k"]),
        ("a INT, b STRUCT<x: INT, y: DECIMAL(10,2)>, c ARRAY<STRING>", ["a", "b", "c"]),
        ("`x, y` STRING NOT NULL COMMENT 'a, b', `q``r` INT", ["x, y", "q`r"]),
        ("k: string, n: bigint", ["k", "n"]),
        ("struct<k:string,n:bigint>", ["k", "n"]),
        ("", []),
    ],
)
def test_column_names_of_a_schema(ddl: str, names: list[str]) -> None:
    assert column_names(ddl) == names


TYPES: dict[str, DataType] = {
    "boolean": BooleanType(),
    "tinyint": ByteType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "decimal(12,2)": DecimalType(12, 2),
    "interval day to second": DayTimeIntervalType(),
    "array<bigint>": ArrayType(LongType()),
    "map<string,array<int>>": MapType(StringType(), ArrayType(IntegerType())),
    "array<struct<a:int,b:string>>": ArrayType(StructType().add("a", IntegerType()).add("b", StringType())),
}


@pytest.mark.parametrize("kind", TYPES)
def test_columns_have_the_types_that_spark_gives_them_in_arrow(kind: str) -> None:
    wanted = sparks_schema(StructType().add("before", StringType()).add("x", TYPES[kind]))
    for ddl in (f"before string, x {kind}", f"before STRING, `x` {kind.upper() if '<' not in kind else kind}"):
        assert arrow_schema(ddl).types == wanted.types


def test_a_column_of_an_unknown_type_is_still_listed() -> None:
    assert arrow_schema("k string, v variant").names == ["k", "v"]
