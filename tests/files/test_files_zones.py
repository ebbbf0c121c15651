"""Timestamps without an offset are local to the session's time zone, by Java's rules; `zoneinfo` is the oracle here."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from spark_ckpt_files.records import cut
from spark_ckpt_files.text import Bad, Rows, csv_parser, instants, instants_of_texts, json_parser, parse_tolerant

NEW_YORK = "America/New_York"
ZONES = (NEW_YORK, "Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Kathmandu", "UTC")
INSTANT = pa.timestamp("us", tz="UTC")


def instant(text: str, zone: str = NEW_YORK) -> str:
    (found,) = instants_of_texts(pa.array([text]), zone).to_pylist()
    return str(found.astimezone(dt.UTC).isoformat())


def test_a_local_time_is_read_with_the_zones_offset_on_that_day():
    assert instant("2024-01-01 12:00:00") == "2024-01-01T17:00:00+00:00"
    assert instant("2024-07-01T12:00:00") == "2024-07-01T16:00:00+00:00"
    assert instant("2024-07-01") == "2024-07-01T04:00:00+00:00"


def test_a_time_that_clocks_pass_over_is_read_with_the_offset_before():
    assert instant("2024-03-10 02:30:00") == "2024-03-10T07:30:00+00:00"
    assert instant("2024-03-10 03:00:00") == "2024-03-10T07:00:00+00:00"


def test_a_time_that_occurs_twice_is_the_earlier_one():
    assert instant("2024-11-03 01:30:00") == "2024-11-03T05:30:00+00:00"


@pytest.mark.parametrize("offset", ["Z", "+00:00", "-0000", "+00"])
def test_a_text_with_an_offset_is_the_same_instant_in_every_zone(offset: str):
    assert instant(f"2024-03-10T02:30:00.5{offset}") == "2024-03-10T02:30:00.500000+00:00"


def test_an_offset_is_a_zone_too():
    assert instant("2024-01-01 00:00:00", "+05:30") == "2023-12-31T18:30:00+00:00"


def test_digits_beyond_microseconds_are_cut_off():
    assert instant("2024-01-01T00:00:00.123456789Z") == "2024-01-01T00:00:00.123456+00:00"


def test_an_invalid_time_is_refused():
    with pytest.raises(pa.ArrowInvalid):
        instants_of_texts(pa.array(["yesterday"]), NEW_YORK)


times = st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2030, 1, 1))


@given(st.lists(times | st.none(), max_size=5), st.sampled_from(ZONES))
@example([dt.datetime(2024, 3, 10, 2, 30), None, dt.datetime(2024, 11, 3, 1, 30)], NEW_YORK)
@example([dt.datetime(2008, 11, 2, 1, 0, fold=1)], NEW_YORK)
@example([dt.datetime(2018, 11, 4, 0, 10)], "America/Sao_Paulo")
@example([dt.datetime(2024, 10, 6, 2, 10), dt.datetime(2024, 4, 7, 1, 40)], "Australia/Lord_Howe")
def test_every_local_time_in_every_zone_follows_the_zones_rules(local: list[dt.datetime | None], zone: str):
    found = instants(pa.array(local, pa.timestamp("us")), zone).to_pylist()

    # Arrow's local times have no fold. fold=0 is the offset before the change, for a gap and for an overlap alike.
    zoned = [None if each is None else each.replace(tzinfo=ZoneInfo(zone), fold=0) for each in local]
    assert found == [None if each is None else each.astimezone(dt.UTC) for each in zoned]


def rows(parser: Any, text: bytes) -> list[Any]:
    class Stream:
        left = text

        def read(self, size: int) -> bytes:
            out, self.left = self.left[:size], self.left[size:]
            return out

    found: list[Any] = []
    for records in cut(Stream()):
        for piece in parse_tolerant(records, parser):
            found += piece.table.to_pylist() if isinstance(piece, Rows) else [piece]
    return found


AT = dt.datetime(2024, 7, 1, 16, tzinfo=dt.UTC)


def test_csv_uses_the_zone():
    schema = pa.schema([("at", INSTANT)])
    assert rows(csv_parser(["at"], schema, ",", '"', "", NEW_YORK), b"2024-07-01 12:00:00\n") == [{"at": AT}]


def test_json_uses_the_zone_at_every_depth():
    inner = pa.struct([("at", INSTANT), ("n", pa.int64())])
    schema = pa.schema([("at", INSTANT), ("s", inner), ("many", pa.list_(INSTANT)), ("deep", pa.list_(inner))])
    text = b'{"at": "T", "s": {"at": "T", "n": 1}, "many": ["T", null], "deep": [null, {"at": "T"}]}\n{}\n{"s": null}\n'

    found = rows(json_parser(schema, NEW_YORK), text.replace(b'"T"', b'"2024-07-01T12:00:00"'))

    nothing = {"at": None, "s": None, "many": None, "deep": None}
    full = {"at": AT, "s": {"at": AT, "n": 1}, "many": [AT, None], "deep": [None, {"at": AT, "n": None}]}
    assert found == [full, nothing, nothing]


def test_a_bad_time_deep_inside_is_still_one_bad_record():
    schema = pa.schema([("many", pa.list_(INSTANT))])
    text = b'{"many": ["2024-01-01"]}\n{"many": ["yesterday"]}\n{"many": []}\n'

    first, bad, last = rows(json_parser(schema, NEW_YORK), text)

    assert isinstance(bad, Bad)
    assert bad.line == 2
    assert (first["many"], last["many"]) == ([dt.datetime(2024, 1, 1, 5, tzinfo=dt.UTC)], [])
