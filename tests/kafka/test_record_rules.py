"""Rows that a topic refuses, validated row by row during staging."""

from __future__ import annotations

import datetime
import os
import pickle
import time
from datetime import UTC

import numpy as np
import pyarrow as pa
import pytest
from spark_ckpt_kafka.record_batches import Chunk, encode_records
from spark_ckpt_kafka.record_rules import BATCH_BYTES, RecordRules, TopicLimits, audit_stamp

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
NOW = object()


def rows(**columns):
    """Columns of one length; those without a value are not there."""
    size = len(next(iter(columns.values())))
    columns.setdefault("value", [b"v"] * size)
    return pa.table({name: pa.chunked_array([pa.array(values, TYPES[name])]) for name, values in columns.items()})


def at(ms):
    return datetime.datetime(1970, 1, 1, tzinfo=UTC) + datetime.timedelta(milliseconds=ms)


def rules(topic="t", compression="none", most=1_000_000, **limits):
    return RecordRules(topic, most, compression, TopicLimits(**limits))


def refused(table, **named):
    found = rules(**named)(table)
    return None if found is None else (found.row, found.column)


def test_usual_rows_are_accepted():
    now = datetime.datetime.now(UTC)
    table = rows(
        key=[b"k", b"", None],
        value=[b"v", b"", b"v"],
        headers=[None, [], [{"key": "h", "value": b""}, {"key": "", "value": b"x"}]],
        partition=[None, 0, 2],
        timestamp=[None, now, at(-2)],
    )
    assert refused(table, partitions=3, max_message_bytes=1_000) is None


def test_a_header_without_a_value_and_an_empty_record_are_accepted():
    assert refused(rows(headers=[None, [{"key": "h", "value": None}]])) is None
    assert refused(rows(key=[b"k", None], value=[None, None])) is None


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"x"}])
def test_a_null_header_and_one_without_a_key_are_refused(header):
    good = {"key": "h", "value": b"1"}
    table = rows(headers=[[good], None, [good, header], [good]])
    assert refused(table) == (2, "headers")


def test_a_time_that_means_no_time_is_refused():
    assert refused(rows(timestamp=[at(1), at(-1)])) == (1, "timestamp")


def test_times_outside_of_the_topics_bounds_are_refused():
    now_ms = int(time.time() * 1000)
    table = rows(timestamp=[at(now_ms - 1_000), at(now_ms - 90_000_000), at(now_ms + 90_000_000)])
    assert refused(table) is None
    assert refused(table, before_ms=86_400_000) == (1, "timestamp")
    assert refused(table, after_ms=86_400_000) == (2, "timestamp")


def test_partitions_that_are_not_there_are_refused():
    assert refused(rows(partition=[0, -1])) == (1, "partition")
    assert refused(rows(partition=[0, 3, None]), partitions=3) == (1, "partition")
    assert refused(rows(partition=[0, 3, None])) is None, "how many there are is not known"


def test_a_compacted_topic_takes_no_row_without_a_key():
    assert refused(rows(key=[b"", None]), compacted=True) == (1, "key")
    assert refused(rows(value=[b"v"]), compacted=True) == (0, "key")
    assert refused(rows(key=[None])) is None


def test_a_row_that_names_no_topic_or_an_impossible_one_is_refused():
    assert refused(rows(topic=["a", None]), topic=None) == (1, "topic")
    assert refused(rows(topic=["a", "b c"]), topic=None) == (1, "topic")
    assert refused(rows(topic=[".."]), topic=None) == (0, "topic")
    assert refused(rows(topic=[None]), topic="t") is None


def test_a_record_of_the_topics_limit_is_accepted_and_one_of_a_byte_more_is_refused():
    """61 bytes of a batch and 8 around a key of 1 and a value of some 100 bytes; varints of 2 bytes from 64 on."""
    accepted = rows(key=[b"k"], value=[b"x" * 100])
    assert refused(accepted, max_message_bytes=61 + 9 + 101) is None
    assert refused(accepted, max_message_bytes=61 + 9 + 100) == (0, "value")


def test_headers_are_part_of_a_records_size():
    table = rows(value=[b"", b""], headers=[None, [{"key": "h" * 500, "value": b"v" * 500}]])
    assert refused(table, max_message_bytes=1_000) == (1, "value")


@pytest.mark.parametrize("headers", [None, [{"key": "h", "value": None}] * 62])
def test_headers_that_the_sink_adds_are_part_of_a_records_size(headers):
    table, stamp = rows(value=[b"x" * 100], headers=[headers]), audit_stamp("store.out.0", 7)
    [sent] = encode_records(Chunk("t", table.to_batches()[0], stamp), np.zeros(1, np.int64), 0, 10_000)
    size = BATCH_BYTES + sent.data.size

    def accepts(most):
        return RecordRules("t", 1_000_000, limits=TopicLimits(max_message_bytes=most), stamp=stamp)(table) is None

    assert accepts(size)
    assert not accepts(size - 1)


def test_a_record_that_fits_when_compressed_is_accepted():
    assert refused(rows(value=[b"x" * 20_000]), max_message_bytes=10_000, compression="lz4") is None
    assert refused(rows(value=[os.urandom(20_000)]), max_message_bytes=10_000, compression="lz4") == (0, "value")


def test_a_record_that_the_client_does_not_send_is_refused():
    assert refused(rows(value=[b"x", b"x" * 3_000]), most=2_000, compression="lz4") == (1, "value")


def test_the_first_row_of_several_is_named():
    table = rows(key=[b"k", None, b"k"], partition=[0, 0, 9])
    assert refused(table, compacted=True, partitions=1) == (1, "key")


def test_tasks_get_the_rules_by_the_name_of_their_module():
    made = rules(partitions=3)
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize("begin", range(4))
def test_a_slice_of_a_table_is_validated_by_its_own_rows(begin):
    """A slice as lanes and batches cut it."""
    good, bad = {"key": "h", "value": b"1"}, {"key": None, "value": b"2"}
    table = rows(
        key=[b"k"] * 6,
        value=[b"x", b"x" * 500, b"x", b"x", b"x", b"x" * 600],
        headers=[[good, good], None, [], [good], [good, bad], [good]],
        partition=[0, 0, 0, 0, 0, 9],
    ).slice(begin)
    assert refused(table) == (4 - begin, "headers")
    assert refused(table.slice(0, 4 - begin)) is None
    sizes = refused(table.slice(0, 4 - begin), max_message_bytes=300)
    assert sizes == ((1 - begin, "value") if begin < 2 else None)
