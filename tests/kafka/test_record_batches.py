"""kafka-python's reader, which shares no code with the encoder, finds each row in its batch unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2
from kafka.record.memory_records import MemoryRecords
from spark_ckpt_kafka import record_batches
from spark_ckpt_kafka.partitioner import UnknownPartition, choose_partitions
from spark_ckpt_kafka.record_batches import Chunk, ProducerId, Records, encode_records, frame_batch
from spark_ckpt_kafka.record_rules import Headers

from spark_ckpt.errors import RowsRefused

NOW_MS = 1_700_000_000_000
PARTITIONS = 3
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
Row = Mapping[str, Any]
SIZES = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 63, 64, 200, 8_200])
BYTES = st.builds(lambda size, seed: np.random.default_rng(seed).bytes(size), SIZES, st.integers(0, 999))
HEADER = st.tuples(st.text(max_size=5), st.none() | BYTES)
ROWS = st.fixed_dictionaries(
    {
        "key": st.none() | BYTES,
        "value": st.none() | BYTES,
        "partition": st.none() | st.integers(0, PARTITIONS - 1),
        "timestamp": st.none() | st.integers(-(10**12), 4 * 10**12),
        "headers": st.none() | st.lists(HEADER, max_size=3),
    }
)


@dataclass(frozen=True)
class Given:
    """Rows with some of the columns, as a slice of a longer batch."""

    rows: list[Row]
    columns: frozenset[str]
    skipped: int
    stamp: Headers = field(default_factory=list)

    def chunk(self) -> Chunk:
        names = ["value", *sorted(self.columns)]
        arrays = {name: pa.array([_stored(name, row[name]) for row in self.rows], TYPES[name]) for name in names}
        return Chunk("t", pa.record_batch(arrays).slice(self.skipped), self.stamp)

    def wanted(self, number: int) -> tuple[object, ...]:
        row = self.rows[self.skipped + number]
        has = {name: row[name] if name == "value" or name in self.columns else None for name in TYPES}
        headers = [*(has["headers"] or ()), *self.stamp]
        time_ms = NOW_MS if has["timestamp"] is None else has["timestamp"]
        return has["key"], has["value"], headers, time_ms


def _stored(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name == "headers":
        return [{"key": key, "value": held} for key, held in value]
    return value * 1000 if name == "timestamp" else value


@st.composite
def given_rows(draw: st.DrawFn) -> Given:
    rows = draw(st.lists(ROWS, min_size=1, max_size=30))
    columns = draw(st.frozensets(st.sampled_from([name for name in TYPES if name != "value"])))
    stamp: Headers = draw(st.sampled_from([[], [("lane", b"1"), ("epoch", None)]]))
    return Given(rows, columns, draw(st.integers(0, len(rows) - 1)), stamp)


def read_back(chunk: Chunk, partitions: Any, compression: str, batch_bytes: int) -> dict[int, tuple[object, ...]]:
    """Return the rows that kafka-python reads, by number. Check the fields of the batch."""
    found: dict[int, tuple[object, ...]] = {}
    for records in encode_records(chunk, partitions, NOW_MS, batch_bytes):
        framed = frame_batch(records, ProducerId(77, 5), 9, compression)
        assert len(records.rows) == 1 or len(framed) <= batch_bytes
        batches = MemoryRecords(framed)
        batch = batches.next_batch()
        assert batch is not None and batches.next_batch() is None
        assert batch.validate_crc()
        read = list(batch)
        assert [each.offset for each in read] == list(range(len(records.rows)))
        for each, number in zip(read, records.rows, strict=True):
            headers = [tuple(header) for header in each.headers]
            assert records.partition == partitions[number]
            found[int(number)] = (each.key, each.value, headers, each.timestamp)
    return found


@given(given_rows(), st.sampled_from(["none", "gzip", "lz4"]), st.sampled_from([100, 5_000, 1_000_000]))
def test_each_row_is_read_back_unchanged(one: Given, compression: str, batch_bytes: int) -> None:
    chunk = one.chunk()
    partitions = choose_partitions(chunk, PARTITIONS, 2)

    found = read_back(chunk, partitions, compression, batch_bytes)

    assert found == {number: one.wanted(number) for number in range(len(chunk))}


@pytest.mark.parametrize(("producer", "belongs"), [(ProducerId(77, 0), True), (None, False)])
def test_a_batch_belongs_to_a_transaction_if_it_has_a_producer(producer: ProducerId | None, belongs: bool) -> None:
    chunk = Chunk("t", pa.record_batch({"value": [b"v"]}), [])
    (records,) = encode_records(chunk, np.array([0]), NOW_MS, 1000)

    batch = MemoryRecords(frame_batch(records, producer, -1, "none")).next_batch()

    assert batch is not None
    assert (batch.is_transactional, batch.has_producer_id(), batch.validate_crc()) == (belongs, belongs, True)


@given(given_rows())
def test_a_row_goes_to_its_own_partition_or_to_that_of_its_key(one: Given) -> None:
    chunk = one.chunk()

    chosen = choose_partitions(chunk, PARTITIONS, 1)

    for number, partition in enumerate(chosen):
        row = one.rows[one.skipped + number]
        own, key = (row[name] if name in one.columns else None for name in ("partition", "key"))
        hashed = 1 if key is None else (murmur2(key) & 0x7FFFFFFF) % PARTITIONS
        assert partition == (hashed if own is None else own)


@pytest.mark.parametrize("many", [1, 150])
def test_long_keys_go_where_the_java_client_puts_them(many: int) -> None:
    keys = [b"k%d" % number * 5_000 for number in range(many)] + [b"%d" % number for number in range(300)]

    chosen = choose_partitions(Chunk("t", pa.record_batch({"key": keys, "value": keys}), []), 1_000, 0)

    assert chosen.tolist() == [(murmur2(key) & 0x7FFFFFFF) % 1_000 for key in keys]


def test_one_long_key_does_not_slow_down_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of 1 MiB would take 50,000 rows a quarter of a million times through a step of the hash."""
    keys = [b"x" * 20_000] + [b"%d" % number for number in range(300)]
    steps: Counter[str] = Counter()
    where = np.where

    def counted(*given: Any) -> Any:
        steps["rows"] += len(given[0])
        return where(*given)

    monkeypatch.setattr(np, "where", counted)
    choose_partitions(Chunk("t", pa.record_batch({"key": keys, "value": keys}), []), PARTITIONS, 0)

    assert steps["rows"] < 10 * len(keys)


@pytest.mark.parametrize("partition", [-1, PARTITIONS])
def test_a_partition_that_the_topic_does_not_have_is_refused(partition: int) -> None:
    rows = pa.record_batch({"value": [b"v"], "partition": pa.array([partition], pa.int32())})

    with pytest.raises(UnknownPartition, match=str(partition)):
        choose_partitions(Chunk("t", rows, []), PARTITIONS, 0)


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"x"}], ids=["null", "no key"])
def test_a_header_that_no_record_can_have_is_refused(header: object) -> None:
    rows = pa.record_batch({"value": [b"v"], "headers": pa.array([[header]], TYPES["headers"])})

    with pytest.raises(RowsRefused, match="header"):
        encode_records(Chunk("t", rows, []), np.zeros(1, np.int64), NOW_MS, 1000)


def in_order(batches: list[Records], partitions: Any) -> bool:
    return all(
        np.array_equal(
            np.concatenate([each.rows for each in batches if each.partition == partition]),
            np.flatnonzero(partitions == partition),
        )
        for partition in range(PARTITIONS)
    )


def batches_of(count: int) -> tuple[list[Records], Any]:
    partitions = np.random.default_rng(3).integers(0, PARTITIONS, count)
    rows = pa.record_batch({"value": [b"%d" % number for number in range(count)]})
    return encode_records(Chunk("t", rows, []), partitions, NOW_MS, 10_000), partitions


def test_rows_of_a_partition_keep_their_order() -> None:
    assert in_order(*batches_of(5_000))


def test_a_planted_sort_that_changes_the_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: equal values come in reverse order."""
    sort = np.argsort
    monkeypatch.setattr(record_batches.np, "argsort", lambda column, **_: sort(-column, kind="stable")[::-1])

    assert not in_order(*batches_of(5_000))


PLANTED: dict[str, tuple[str, Callable[..., Any]]] = {
    "null becomes empty": ("_lengths", lambda whole: lambda column: np.maximum(whole(column), 0)),
    "one time for a batch": ("_times", lambda whole: lambda *given: (0 * whole(*given)[0], *whole(*given)[1:])),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_wrong_encoding_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    times = pa.array([1_000_000 * number for number in range(40)], TYPES["timestamp"])
    rows = pa.record_batch({"value": [None, *(b"x" * number for number in range(39))], "timestamp": times})
    chunk, partitions = Chunk("t", rows, []), np.arange(40) % PARTITIONS
    right = read_back(chunk, partitions, "none", 400)
    name, plant = PLANTED[bug]
    monkeypatch.setattr(record_batches, name, plant(getattr(record_batches, name)))

    assert read_back(chunk, partitions, "none", 400) != right
