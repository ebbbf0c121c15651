"""CSV and JSON lines: exact rows, exact lines, and every bad record found without an effect on its neighbours."""

from __future__ import annotations

import bz2
import csv
import datetime as dt
import errno
import gzip
import io
import json
import math
import zlib
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from files_kit import settings_of
from hypothesis import example, given
from hypothesis import strategies as st
from spark_ckpt_files import records as records_module
from spark_ckpt_files.listing import DataFile, Directory
from spark_ckpt_files.reading import check_file, read_file
from spark_ckpt_files.records import cut
from spark_ckpt_files.text import Bad, Rows, csv_parser, json_parser, parse_tolerant

from spark_ckpt.errors import BadRecord, ConfigInvalid, SourceInvalid, SourceSilent

DATA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
UTC = dt.UTC


def rows_of(folder: Path, content: bytes, name: str = "f.csv", **changes: Any) -> list[dict[str, Any]]:
    (folder / name).write_bytes(content)
    chosen = settings_of(folder, **{"on_error": "keep", **changes})
    output = list(DATA)
    if chosen.on_error == "keep":
        output.append(pa.field("_corrupt_record", pa.string()))
    if chosen.with_positions:
        output += [pa.field("_file", pa.string()), pa.field("_line", pa.int64())]
    if chosen.on_error == "drop":
        output.append(pa.field("ckpt_reject", pa.string()))
    directory = Directory(str(folder))
    (file,) = directory.files()
    return [row for batch in read_file(directory, file, chosen, pa.schema(output)) for row in batch.to_pylist()]


def test_a_csv_row_has_the_types_of_the_schema(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, b"7,x,2024-01-01T02:00:00+02:00\n", on_error="fail")

    assert row == {"id": 7, "name": "x", "at": dt.datetime(2024, 1, 1, tzinfo=UTC)}


@pytest.mark.parametrize("text", ["2024-01-01", "2024-01-01 00:00:00", "2024-01-01T00:00:00Z"])
def test_a_timestamp_without_an_offset_is_utc(text: str, tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, f"1,x,{text}\n".encode())

    assert row["at"] == dt.datetime(2024, 1, 1, tzinfo=UTC)


def test_an_empty_field_is_null_quoted_or_not(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'1,,\n2,"",\n')

    assert [(row["name"], row["at"]) for row in rows] == [(None, None), (None, None)]


def test_with_another_null_value_a_quoted_empty_field_is_an_empty_text(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'1,NA,NA\n2,"NA",NA\n3,,NA\n4,"",NA\n', null_value="NA")

    assert [row["name"] for row in rows] == [None, None, None, ""]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.int32(), {b"-7": -7, b"007": 7, b'""': None}, [b"0x10", b"0XFF", b" 5", b"5 ", b'"\t5"', b"1.0"]),
        (pa.bool_(), {b"true": True, b"FALSE": False, b"tRuE": True}, [b"1", b"0", b"yes", b" true"]),
        (pa.decimal128(5, 2), {b"1.25": Decimal("1.25")}, [b" 1.25", b"1.25\t", b"0x1"]),
        (pa.float64(), {b"Inf": math.inf, b"-Infinity": -math.inf, b"1e999": math.inf}, [b"inf", b"nan", b"+Inf"]),
    ],
    ids=str,
)
def test_a_csv_field_that_spark_does_not_read_is_a_bad_record(
    kind: pa.DataType, good: dict[bytes, Any], bad: list[bytes]
) -> None:
    parse = csv_parser(["v", "n"], pa.schema([("v", kind), ("n", pa.string())]), ",", '"', "")
    lines = [line for pair in zip_longest(good, bad) for line in pair if line is not None]
    (found,) = cut(io.BytesIO(b"".join(line + b",x\n" for line in lines)), '"')

    read: list[Any] = []
    for piece in parse_tolerant(found, parse):
        read += ["bad"] if isinstance(piece, Bad) else piece.table.column("v").to_pylist()

    assert read == ["bad" if line in bad else good[line] for line in lines]


def test_a_text_may_look_like_a_number_that_spark_does_not_read(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b"1,0x10,\n2, x ,\n3,nan,\n")

    assert [row["name"] for row in rows] == ["0x10", " x ", "nan"]


@pytest.mark.parametrize("offset", ["Z", "+01:00", "-0500"])
def test_a_json_time_without_a_zone_that_has_an_offset_is_a_bad_record(offset: str) -> None:
    parse = json_parser(pa.schema([("at", pa.list_(pa.timestamp("us")))]))
    lines = ['{"at": ["2024-01-01T00:00:00.1234567", null]}\n', f'{{"at": ["2024-01-01T00:00:00{offset}"]}}\n']
    (found,) = cut(io.BytesIO("".join(lines).encode()))

    good, bad = parse_tolerant(found, parse)

    assert isinstance(good, Rows) and isinstance(bad, Bad)
    assert good.table.to_pylist() == [{"at": [dt.datetime(2024, 1, 1, 0, 0, 0, 123456), None]}]


def test_columns_are_found_by_name_in_the_header(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, b"\xef\xbb\xbfat,extra,name,id\n2024-01-01,9,x,1\n", header=True)

    assert (row["id"], row["name"], row["_line"]) == (1, "x", 2)


def test_a_header_without_a_column_of_the_schema_names_it(tmp_path: Path) -> None:
    with pytest.raises(SourceInvalid, match="header has no column at; it has id, name"):
        rows_of(tmp_path, b"id,name\n1,x\n", header=True, on_error="keep")


def test_a_header_with_a_column_of_the_schema_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceInvalid, match="header has column id more than once"):
        rows_of(tmp_path, b"id,name,at,id\n1,x,,2\n", header=True, on_error="keep")


BAD_CSV = [
    b"x,bad number,2024-01-01",
    b"1,too,many,2024-01-01",
    b"1",
    b'1,"never closed,2024-01-01',
    b'1,"a"b,2024-01-01',
    b'1,""b,2024-01-01',
    b'1,"a" ,2024-01-01',
    b'1,"a\\"b\\"c",2024-01-01',
    b'1,"a""b"c,2024-01-01',
    b"1,\xff\xfe,2024-01-01",
    b"1,x,yesterday",
]
BAD_JSON = [
    b"null",
    b"[]",
    b"5",
    b"not json",
    b'{"id": 1',
    b'{"id": 1}}',
    b'{"id": "1"}',
    b'{"id": 1.5}',
    b'{"id": 1}{"id": 2}',
    b'{"name": "\xff"}',
    b'{"id": 1, "id": 2}',
    b'{"at": "yesterday"}',
    b"\0\0",
]


@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize("where", [0, 1, 4])
def test_every_kind_of_bad_record_is_isolated_with_its_line(format: str, where: int, tmp_path: Path) -> None:
    good = [b"%d,n,2024-01-01" % n if format == "csv" else b'{"id": %d}' % n for n in range(4)]
    for bad in BAD_CSV if format == "csv" else BAD_JSON:
        rows = rows_of(tmp_path, b"\n".join([*good[:where], bad, *good[where:]]), format=format)

        assert [row["id"] for row in rows if row["_corrupt_record"] is None] == [0, 1, 2, 3], bad
        (found,) = [row for row in rows if row["_corrupt_record"] is not None]
        assert (found["_line"], found["_corrupt_record"]) == (where + 1, bad.decode(errors="replace")), bad
        assert rows.index(found) == where


def test_fail_names_file_line_and_text(tmp_path: Path) -> None:
    with pytest.raises(BadRecord) as caught:
        rows_of(tmp_path, b"1,x,\n\n" + b"z" * 300 + b",x,\n", name="day.csv", on_error="fail")

    assert caught.value.what.startswith("day.csv, line 3: ")
    assert caught.value.context["line"] == 3
    assert len(str(caught.value.context["record"])) == 200


def test_drop_passes_the_reason_to_the_core(tmp_path: Path) -> None:
    good, bad = rows_of(tmp_path, b"1,x,\nbad\n", on_error="drop")

    assert good["ckpt_reject"] is None
    reject = json.loads(bad["ckpt_reject"])
    assert (reject["file"], reject["line"], reject["record"]) == ("f.csv", 2, "bad")
    assert "Expected 3 columns" in reject["reason"]


def test_positions_are_added_to_good_rows(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b"1,x,\n\n2,y,\n", on_error="fail", positions=True)

    assert [(row["_file"], row["_line"]) for row in rows] == [("f.csv", 1), ("f.csv", 3)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("blank", [b" ", b"\t\t", b" \t "])
def test_a_line_of_blanks_is_no_record(blank: bytes, end: bytes, tmp_path: Path) -> None:
    tsv = end.join([blank, b"id\tname\tat", b"1\tx\t", blank, b"2\t \t", b"", blank, b"\t3\t", blank])
    lines = end.join([blank, b'{"id": 1}', blank, b' {"id": 2}', blank])

    rows = rows_of(tmp_path, tsv, header=True, delimiter="\t", on_error="fail", positions=True)
    (tmp_path / "f.csv").unlink()
    objects = rows_of(tmp_path, lines, "f.json", format="json", on_error="fail", positions=True)

    assert [(row["id"], row["name"], row["_line"]) for row in rows] == [(1, "x", 3), (2, " ", 5), (None, "3", 8)]
    assert [(row["id"], row["_line"]) for row in objects] == [(1, 2), (2, 4)]


def test_a_line_of_tabs_is_a_record_of_nulls_if_records_may_have_several_lines(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b"1\tx\t\n\t\t\n", delimiter="\t", multiline=True, on_error="fail")

    assert rows == [{"id": 1, "name": "x", "at": None}, dict.fromkeys(DATA.names)]


@pytest.mark.parametrize(
    "given", [{"quote": "\0"}, {"delimiter": "\0"}, {"quote": "\n"}, {"delimiter": "ab"}, {"quote": ""}]
)
def test_a_delimiter_or_quote_that_no_task_could_parse_with_is_refused(given: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="one ASCII character"):
        settings_of(tmp_path, **given)


def test_a_stray_quote_inside_an_unquoted_field_is_text(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'1,5" pipe,\n2,x,\n')

    assert [row["name"] for row in rows] == ['5" pipe', "x"]


def test_stray_quotes_and_quoted_fields_are_read_in_one_go() -> None:
    lines = [b'1,5" pipe', b'2,"5"" pipe, 6"" pipe"', b"3,x", b'4,a"b"c', b'5,""', b'6,"' + b"y" * 200_000 + b'"']
    (found,) = cut(io.BytesIO(b"\n".join([*lines, b""])))

    (piece,) = parse_tolerant(found, csv_parser(["id", "name"], pa.schema(list(DATA)[:2]), ",", '"', ""))

    assert isinstance(piece, Rows)
    names = piece.table.column("name").to_pylist()
    assert names == ['5" pipe', '5" pipe, 6" pipe', "x", 'a"b"c', None, "y" * 200_000]


def test_a_file_may_have_more_bad_records_than_python_has_calls(tmp_path: Path) -> None:
    line = b'1,"never closed,'
    rows = rows_of(tmp_path, b"\n".join([line] * 1_200 + [b"2,x,"]))

    assert [row["_corrupt_record"] for row in rows] == [line.decode()] * 1_200 + [None]


def test_line_ends_inside_quotes_belong_to_the_record_if_multiline(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'1,"a\nb",\n2,"say ""x""\n",\n3,c,\n', multiline=True)

    assert [(row["name"], row["_line"]) for row in rows] == [("a\nb", 1), ('say "x"\n', 3), ("c", 5)]


@pytest.mark.parametrize("block", [3, 11, 1 << 20])
def test_a_stray_quote_joins_no_records_of_several_lines(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_module, "BLOCK_BYTES", block)
    content = b'1,5" pipe,\n2,"a\nb",\n3,x,\n4,"say ""y""\n",\n5,"c"d,\n6,6" pipe,\n7,"""\n",'
    rows = rows_of(tmp_path, content, multiline=True)

    found = [(row["id"] or row["_corrupt_record"], row["name"], row["_line"]) for row in rows]
    assert found == [
        (1, '5" pipe', 1), (2, "a\nb", 2), (3, "x", 4), (4, 'say "y"\n', 5), ('5,"c"d,', None, 7), (6, '6" pipe', 8),
        (7, '"\n', 9),
    ]  # fmt: skip


def test_windows_line_ends_and_a_missing_last_one(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b"1,x,\r\n\r\n2,y,")

    assert [(row["id"], row["name"], row["_line"]) for row in rows] == [(1, "x", 1), (2, "y", 3)]


CR_ROWS = [(1, "x"), (2, "y\nz"), (3, "q\rr"), (4, None)]
CR_CSV = b'id,name\r1,x\r2,"y\nz"\r\r3,"q\rr"\r4,""\r'


@pytest.mark.parametrize("end", [b"", b"\r", b"\r\r", b"5,v"])
@pytest.mark.parametrize("block", [1, 2, 5, 1 << 20])
def test_csv_lines_may_end_in_a_carriage_return_alone(
    end: bytes, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_module, "BLOCK_BYTES", block)
    content, more = CR_CSV.replace(b"id,name", b"id,name,at").replace(b"\r3", b",\r3") + end, []
    content = b'id,name,at\r1,x,\r2,"y\nz",\r\r3,"q\rr",\r4,"",\r' + end + (b"," if end.startswith(b"5") else b"")
    more = [(5, "v")] if end.startswith(b"5") else []

    rows = rows_of(tmp_path, content, header=True, multiline=True)

    assert [(row["id"], row["name"]) for row in rows] == CR_ROWS + more
    assert [row["_line"] for row in rows[:3]] == [2, 3, 6]


def test_a_carriage_return_inside_quotes_ends_no_line(tmp_path: Path) -> None:
    assert [row["name"] for row in rows_of(tmp_path, b'1,"x\ry",\n2,z,\n')] == ["x\ry", "z"]


def test_json_lines_may_end_in_a_carriage_return_alone(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, b'{"id":1}\r{"id":2}\r{"id":"bad"}\r', "f.json", format="json")

    assert [(row["id"], row["_line"]) for row in rows] == [(1, 1), (2, 2), (None, 3)]


@pytest.mark.parametrize("read", [check_file, lambda *args: list(read_file(*args))])
@pytest.mark.parametrize("on_error", ["fail", "drop", "keep"])
def test_a_header_that_is_no_csv_record_is_refused_with_its_file(read: Any, on_error: Any, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(b"id,na\rme,at\n1,x,\n" if on_error == "fail" else b'"' + b"x" * 200_000 + b'"\n')
    directory = Directory(str(tmp_path))

    with pytest.raises(SourceInvalid) as caught:
        read(directory, directory.files()[0], settings_of(tmp_path, header=True, on_error=on_error), DATA)
    assert caught.value.context["file"] == "f.csv"


def test_a_compressed_file_is_unpacked(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, gzip.compress(b"1,x,\n"), name="f.csv.gz")

    assert rows[0]["id"] == 1


def test_the_case_of_an_ending_does_not_matter(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, gzip.compress(b"1,x,\n"), name="f.csv.GZ")

    assert [row["id"] for row in rows] == [1]


@pytest.mark.parametrize("ending", ["deflate", "snappy", "ZIP"])
@pytest.mark.parametrize("read", [check_file, lambda *args: list(read_file(*args))])
def test_a_file_of_another_compression_is_refused_and_gives_no_rows(read: Any, ending: str, tmp_path: Path) -> None:
    (tmp_path / f"f.csv.{ending}").write_bytes(zlib.compress(b"1,x,\n"))
    directory = Directory(str(tmp_path))
    with pytest.raises(SourceInvalid, match="does not unpack"):
        read(directory, directory.files()[0], settings_of(tmp_path, on_error="keep"), DATA)


def test_the_parts_of_a_bz2_file_may_be_empty(tmp_path: Path) -> None:
    parts = [b"", b"1,x,\n2,", b"", b"", b"y,\n", (b"3," + b"z" * 1000 + b",\n") * 2_000, b""]
    rows = rows_of(tmp_path, b"".join(map(bz2.compress, parts)), name="f.csv.bz2", on_error="drop")

    assert [row["name"] for row in rows[:2]] == ["x", "y"]
    assert len(rows) == 2_002


@pytest.mark.parametrize("content", [bz2.compress(b"1,x,\n")[:-1], bz2.compress(b"1,x,\n") + b"no bz2", b"1,x,\n"])
def test_a_bz2_file_that_is_cut_off_or_none_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(SourceInvalid, match=r"f\.csv\.bz2 cannot be read"):
        rows_of(tmp_path, content, name="f.csv.bz2")


def test_a_truncated_compressed_file_is_an_error_not_fewer_rows(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b"%d,x,\n" % n for n in range(100_000)))
    with pytest.raises(SourceInvalid, match=r"f\.csv\.gz cannot be read"):
        rows_of(tmp_path, whole[: len(whole) // 2], name="f.csv.gz")


def test_records_that_cross_block_borders_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "BLOCK_BYTES", 7)
    rows = rows_of(tmp_path, b"".join(b"%d,name%d,\n" % (n, n) for n in range(50)))

    assert [(row["id"], row["name"], row["_line"]) for row in rows] == [(n, f"name{n}", n + 1) for n in range(50)]


fields = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]) | st.sampled_from('",\n'), max_size=8)


@given(st.lists(st.tuples(fields, fields), min_size=1, max_size=20))
@example([("\n", '"'), ("a", ",")])
def test_multiline_csv_equals_pythons_csv_module(rows: list[tuple[str, str]]) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    parse = csv_parser(["a", "b"], schema, ",", '"', "")
    (found,) = cut(io.BytesIO(text.getvalue().encode()), '"')

    (piece,) = parse_tolerant(found, parse)

    assert isinstance(piece, Rows)
    assert [tuple(row.values()) for row in piece.table.to_pylist()] == [(a or None, b or None) for a, b in rows]


json_lines = st.lists(st.sampled_from([*BAD_JSON[:-1], b'{"id": 3}', b'{"id": null, "other": [1]}', b"{}"]), min_size=1)


@given(json_lines)
def test_a_line_has_the_same_result_alone_and_among_others(lines: list[bytes]) -> None:
    parse = json_parser(DATA)

    def judged(content: bytes) -> list[int | str | None]:
        verdicts: list[int | str | None] = []
        for block in cut(io.BytesIO(content)):
            for piece in parse_tolerant(block, parse):
                verdicts += ["bad"] if isinstance(piece, Bad) else piece.table.column("id").to_pylist()
        return verdicts

    assert judged(b"\n".join(lines)) == [verdict for line in lines for verdict in judged(line)]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.decimal128(5, 2), "999.99", "1000"),
        (pa.list_(pa.decimal128(5, 2)), "[1, 999.99]", "[1, 1000]"),
        (pa.struct([("d", pa.decimal128(5, 2))]), '{"d": 999.99}', '{"d": 1000}'),
    ],
    ids=["number", "array", "struct"],
)
def test_a_decimal_beyond_its_precision_is_a_bad_record(kind: pa.DataType, good: str, bad: str) -> None:
    """Arrow's readers accept it, and Spark ends the task later."""
    lines = f'{{"m": {good}}}\n{{"m": {bad}}}\n{{"m": {good}}}\n'.encode()
    pieces = [
        piece
        for block in cut(io.BytesIO(lines))
        for piece in parse_tolerant(block, json_parser(pa.schema([("m", kind)])))
    ]
    assert [len(piece.table) if isinstance(piece, Rows) else (piece.line, "precision" in piece.reason) for piece in pieces] == [
        1, (2, True), 1,
    ]  # fmt: skip


def test_a_csv_decimal_beyond_its_precision_is_a_bad_record() -> None:
    parse = csv_parser(["m"], pa.schema([("m", pa.decimal128(5, 2))]), ",", '"', "")
    pieces = [piece for block in cut(io.BytesIO(b"999.99\n1000\n")) for piece in parse_tolerant(block, parse)]
    assert [isinstance(piece, Bad) for piece in pieces] == [False, True]


def test_a_parquet_file_of_wider_or_narrower_numbers_is_read(tmp_path: Path) -> None:
    content = io.BytesIO()
    table = pa.table({"name": ["x"], "id": pa.array([1], pa.int32()), "at": pa.array([0], pa.timestamp("ms", "UTC"))})
    pa.parquet.write_table(table, content)

    (row,) = rows_of(tmp_path, content.getvalue(), "f.parquet", format="parquet", positions=True, on_error="fail")

    assert row == {
        "id": 1,
        "name": "x",
        "at": dt.datetime(1970, 1, 1, tzinfo=UTC),
        "_file": "f.parquet",
        "_line": 1,
    }


def parquet_rows(folder: Path, table: pa.Table, data: pa.Schema) -> list[dict[str, Any]]:
    pa.parquet.write_table(table, folder / "f.parquet")
    directory, chosen = Directory(str(folder)), settings_of(folder, format="parquet", on_error="fail")
    (file,) = directory.files()
    check_file(directory, file, chosen, data)
    return [row for batch in read_file(directory, file, chosen, data) for row in batch.to_pylist()]


def nested(kind: pa.DataType) -> list[pa.DataType]:
    return [kind, pa.list_(kind), pa.struct([("x", pa.list_(kind))]), pa.map_(pa.string(), kind)]


@pytest.mark.parametrize(("found", "wanted"), list(zip(nested(pa.float64()), nested(pa.float32()), strict=True)))
def test_doubles_in_declared_floats_are_refused_at_every_depth(found, wanted, tmp_path: Path) -> None:
    table = pa.table({"x": pa.nulls(1, found)})

    with pytest.raises(SourceInvalid, match=r"column x is .*double.*, not .*float") as caught:
        parquet_rows(tmp_path, table, pa.schema([("x", wanted)]))
    assert caught.value.context["file"] == "f.parquet"


@pytest.mark.parametrize(("found", "wanted"), list(zip(nested(pa.float32()), nested(pa.float64()), strict=True)))
def test_floats_in_declared_doubles_are_read_at_every_depth(found, wanted, tmp_path: Path) -> None:
    assert parquet_rows(tmp_path, pa.table({"x": pa.nulls(1, found)}), pa.schema([("x", wanted)])) == [{"x": None}]


@pytest.mark.parametrize(
    ("value", "found", "wanted"),
    [
        (2**24 + 1, pa.int64(), pa.float32()), (2**53 + 1, pa.int64(), pa.float64()), (2**40, pa.int64(), pa.int32()),
        (0.5, pa.float64(), pa.int64()), ("7", pa.string(), pa.int64()), (7, pa.int64(), pa.string()),
    ],
)  # fmt: skip
def test_a_number_that_does_not_fit_is_refused_at_every_depth(value, found, wanted, tmp_path: Path) -> None:
    values = [value, [value], {"x": [value]}, [("k", value)]]
    for content, there, declared in zip(values, nested(found), nested(wanted), strict=True):
        table = pa.table({"x": pa.array([content], there)})
        with pytest.raises(SourceInvalid):
            parquet_rows(tmp_path, table, pa.schema([("x", declared)]))


def test_bytes_of_a_fixed_length_are_read_as_binary(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([b"0123", None], pa.binary(4))})
    assert parquet_rows(tmp_path, table, pa.schema([("x", pa.binary())])) == [{"x": b"0123"}, {"x": None}]


@pytest.mark.parametrize("made", [lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind)])
def test_a_field_inside_a_column_is_not_null_because_of_its_case(made, tmp_path: Path) -> None:
    """A field that the file lacks is null, as in Spark."""
    found, wanted = pa.struct([("Id", pa.int64())]), pa.struct([("id", pa.int64()), ("note", pa.string())])
    kept = pa.struct([("Id", pa.int64()), ("note", pa.string())])

    with pytest.raises(SourceInvalid, match=r"column x is .*Id"):
        parquet_rows(tmp_path, pa.table({"x": pa.nulls(1, made(found))}), pa.schema([("x", made(wanted))]))
    table = pa.table({"x": pa.array([{"Id": 1}], found)})
    assert parquet_rows(tmp_path, table, pa.schema([("x", kept)])) == [{"x": {"Id": 1, "note": None}}]


@pytest.mark.parametrize("wanted", [*nested(pa.string()), pa.int64(), pa.decimal128(10, 2), pa.timestamp("us", "UTC")])
def test_a_parquet_column_of_nulls_only_is_read_as_nulls(wanted, tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "note": pa.nulls(2)})

    rows = parquet_rows(tmp_path, table, pa.schema([("id", pa.int64()), ("note", wanted)]))

    assert rows == [{"id": 1, "note": None}, {"id": 2, "note": None}]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_an_int96_time_beyond_nanoseconds_is_read(kind, tmp_path: Path) -> None:
    until = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC if kind.tz else None)
    pa.parquet.write_table(
        pa.table({"until": pa.array([until], kind)}), tmp_path / "f.parquet", use_deprecated_int96_timestamps=True
    )
    directory, chosen = Directory(str(tmp_path)), settings_of(tmp_path, format="parquet", on_error="fail")
    (file,) = directory.files()

    (batch,) = read_file(directory, file, chosen, pa.schema([("until", kind)]))

    assert batch.to_pylist() == [{"until": until}]


def test_a_parquet_file_with_another_schema_says_which_columns(tmp_path: Path) -> None:
    content = io.BytesIO()
    pa.parquet.write_table(pa.table({"id": ["text"], "name": ["x"]}), content)

    with pytest.raises(SourceInvalid, match="column id is string, not int64; column at is missing"):
        rows_of(tmp_path, content.getvalue(), "f.parquet", format="parquet")


@pytest.mark.parametrize("at", [12, -700], ids=["page", "footer"])
def test_a_damaged_parquet_file_is_named(at: int, tmp_path: Path) -> None:
    content = io.BytesIO()
    pa.parquet.write_table(pa.Table.from_pylist([{"id": n} for n in range(1_000)], DATA), content)
    damaged = bytearray(content.getvalue())
    damaged[at : at + 8] = b"\xff" * 8

    with pytest.raises(SourceInvalid, match=r"f\.parquet cannot be read: ") as caught:
        rows_of(tmp_path, bytes(damaged), "f.parquet", format="parquet")
    assert caught.value.context["file"] == "f.parquet"


def test_an_error_of_an_object_store_or_a_disk_within_a_file_may_pass() -> None:
    directory = Directory("mock:///in")
    with pytest.raises(SourceSilent, match=r"a\.csv cannot be read: timeout"), directory.reading(DataFile("a.csv", 1)):
        raise OSError("timeout")
    with pytest.raises(OSError, match="Input/output error"), Directory("in").reading(DataFile("a.csv", 1)):
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    ("format", "content", "complaint"),
    [
        ("parquet", b"id,name,at\n", "cannot be read as parquet"),
        ("csv", b"PAR1....", "it is a Parquet file"),
        ("json", b"id,name,at\n", "line 1 is not a JSON object: id,name,at"),
        ("csv", b"id,at\n", "header has no column name"),
    ],
)
def test_check_notices_a_file_of_another_format(format: str, content: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    directory = Directory(str(tmp_path))

    with pytest.raises(SourceInvalid, match=complaint):
        check_file(directory, directory.files()[0], settings_of(tmp_path, format=format, header=True), DATA)


def test_thousands_of_bad_records_do_not_parse_the_rest_again_and_again() -> None:
    parsed = 0
    inner = csv_parser(DATA.names, DATA, ",", '"', "")

    def counting(records: records_module.Records) -> pa.Table:
        nonlocal parsed
        parsed += len(records)
        return inner(records)

    content = b"".join((b"x" if n % 100 == 0 else b"%d" % n) + b",n,\n" for n in range(20_000))
    bad = [p for r in cut(io.BytesIO(content)) for p in parse_tolerant(r, counting) if isinstance(p, Bad)]

    assert len(bad) == 200
    assert parsed < 30 * 20_000
