"""Sources of Spark that a job accepts, and the state that it keeps for them."""

import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_ckpt import SparkSource
from spark_ckpt.connector import BeginsAtSeed, Identified, MayNeverEnd, Seed, Source
from spark_ckpt.errors import ConfigInvalid, SourceInvalid


def source(format="rate-micro-batch", options=None, now_ms=1_000, **more):
    return SparkSource(format, options, clock_ms=lambda: now_ms, **more)


def test_it_is_a_source_that_is_seeded():
    assert isinstance(source(), Source)
    assert isinstance(source(), BeginsAtSeed)
    assert isinstance(source(), MayNeverEnd)


@pytest.mark.parametrize("format", ["socket", "memory", "kafka", "csv", "json", "parquet", "text", "orc", "JSON"])
@pytest.mark.parametrize("replayable", [False, True])
def test_a_source_that_cannot_be_replayed_is_refused_by_name(format, replayable):
    with pytest.raises(ConfigInvalid, match=f"'{format}' cannot be replayed") as caught:
        source(format, replayable=replayable)
    assert caught.value.hint


def test_an_unknown_format_needs_a_confirmation():
    with pytest.raises(ConfigInvalid, match="it is not known whether 'iceberg'") as caught:
        source("iceberg")
    assert "replayable=True" in caught.value.hint
    assert source("iceberg", replayable=True).describe() == {"kind": "iceberg", "format": "iceberg"}


@pytest.mark.parametrize(
    ("format", "options", "complaint"),
    [
        ("rate", {"rampUpTime": "5s"}, "rampUpTime"),
        ("delta", {"startingVersion": "latest"}, "latest"),
        ("delta", {"schemaTrackingLocation": "/x"}, "schema log"),
    ],
)
def test_options_that_make_a_replay_differ_are_refused(format, options, complaint):
    with pytest.raises(ConfigInvalid, match=complaint):
        source(format, options)


def test_the_cursor_is_sparks_unchanged_offset():
    begin = source().start(None)
    after = source().cursor('{"offset":10,"timestamp":1000}', begin)

    assert source().seed(begin) is None
    assert source().seed(after) == Seed('{"offset":10,"timestamp":1000}')


def test_rate_keeps_the_start_time_of_its_seconds():
    rate = source("rate", {"rowsPerSecond": 5}, now_ms=77_000)
    cursor = rate.cursor("3", rate.start(None))

    assert source("rate", {"rowsPerSecond": 5}, now_ms=99_000).seed(cursor) == Seed("3", {"0": "v1\n77000"})


def test_rate_has_reached_now_when_every_whole_second_is_read():
    early, late = source("rate", now_ms=10_000), source("rate", now_ms=13_900)
    begin, end = early.start(None), late.end(None)

    assert not late.reached(late.cursor("2", begin), end)
    assert late.reached(late.cursor("3", begin), end)


def test_another_rate_at_the_same_place_is_refused():
    cursor = source("rate", {"rowsPerSecond": 5}).start(None)
    with pytest.raises(SourceInvalid, match="had rowsPerSecond 5 and has 6 now"):
        source("rate", {"rowsPerSecond": 6}).seed(cursor)


def test_a_cursor_of_another_source_is_refused():
    with pytest.raises(SourceInvalid, match="the job reads rate"):
        source("rate").seed(source("rate-micro-batch").start(None))


def test_its_identity_is_the_format_and_the_place_and_no_other_option():
    delta = source("delta", {"Path": "/data/../data/t", "password": "x"})

    assert isinstance(delta, Identified)
    assert delta.identity(None) == {"kind": "delta", "path": "/data/t", "table id": ""}
    assert source("rate").identity(None) == {"kind": "rate"}


def test_a_delta_table_that_is_created_again_has_another_identity(tmp_path):
    table = tmp_path / "table"
    delta = source("delta", {"path": str(table)})
    assert delta.identity(None) == {"kind": "delta", "path": str(table), "table id": ""}
    ids = []
    for _ in range(2):
        DeltaTable.create(str(table), schema=pa.schema([("id", pa.int64())]), mode="overwrite")
        ids.append(delta.identity(None)["table id"])
        shutil.rmtree(table)
    assert len(set(ids) - {""}) == 2
