import random
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.tasks import blobs
from spark_ckpt.tasks.packing import (
    PACKED,
    PACKED_DDL,
    control_tag,
    explode_blobs,
    pack,
    tables_of_blobs,
    unpack_ordered,
)

MOMENT = pa.timestamp("us", tz="Europe/Berlin")


KEY_GROUPS = range(100_000)


def rows_of(groups, start=0):
    """Rows whose hash is their key group."""
    count = len(groups)
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array(range(start, start + count), pa.int64()),
            "name": pa.array([f"row {i}" for i in range(count)], pa.string()),
            "at": pa.array([datetime(2024, 5, 1, 0, 0, i % 60, tzinfo=UTC) for i in range(count)], MOMENT),
            "ckpt_key_hash": pa.array(groups, pa.int64()),
        }
    )


def control_rows(group, *epochs, kind=1, full=0):
    """As the shuffle brings them: in the form of packed rows, made by Spark."""
    columns = [[group] * len(epochs), [control_tag(kind, epoch, full) for epoch in epochs], [b""] * len(epochs)]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, to.type) for values, to in zip(columns, PACKED, strict=True)], schema=PACKED
    )


def frames_of(batches, group):
    frame = pd.concat([batch.to_pandas() for batch in batches])
    return frame[frame["ckpt_shuffle_key"] == group]


@given(st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=6), st.integers(1, 40), st.integers(1, 3))
def test_each_group_gets_its_rows_in_order_of_arrival_after_any_shuffle(batches, flush, tasks):
    packed, arrived = [], {group: [] for group in range(4)}
    for task in range(tasks):
        start, mine = 0, []
        for groups in batches:
            mine.append(rows_of(groups, start=start + 1000 * task))
            for i, group in enumerate(groups):
                arrived[group].append(start + 1000 * task + i)
            start += len(groups)
        packed += pack(mine, task, KEY_GROUPS, flush_rows=flush)
    for group, values in arrived.items():
        if packed:
            frame = frames_of(packed, group).sample(frac=1, random_state=1)
            pieces = [frame.iloc[i : i + 2] for i in range(0, len(frame), 2)]
            random.Random(1).shuffle(pieces)
            rows = unpack_ordered(pieces).rows
            assert ([] if rows is None else rows.column("value").to_pylist()) == values


def test_the_key_group_is_the_hash_modulo_the_number_of_groups_as_sparks_pmod():
    (batch,) = pack([rows_of([-1, -17, 5, -(2**63), 2**63 - 1])], 0, range(16))
    assert batch.schema.equals(PACKED)
    assert batch.column("ckpt_shuffle_key").to_pylist() == [0, 5, 15]
    values = [value for table in tables_of_blobs([batch]) for value in table.column("value").to_pylist()]
    assert values == [3, 2, 0, 1, 4]


def test_control_rows_among_blobs_lose_no_row():
    packed = [
        *pack([rows_of([0, 1])], 0, KEY_GROUPS),
        control_rows(0, 3),
        *pack([rows_of([0], start=2)], 1, KEY_GROUPS),
    ]
    unpacked = unpack_ordered([frames_of(packed, 0)])
    assert unpacked.rows.column("value").to_pylist() == [0, 2]
    assert unpacked.controls == [(1, 3, False)]


def test_a_group_with_only_a_control_row_has_no_rows():
    unpacked = unpack_ordered([frames_of([control_rows(0, 3)], 0)])
    assert unpacked.rows is None
    assert unpacked.controls == [(1, 3, False)]


def test_controls_come_once_each_and_by_epoch():
    assert unpack_ordered([frames_of([control_rows(0, 5, full=1), control_rows(0, 4, 4)], 0)]).controls == [
        (1, 4, False),
        (1, 5, True),
    ]


def test_sparks_schema_names_the_packed_columns():
    assert [column.split()[0] for column in PACKED_DDL.split(", ")] == PACKED.names


@pytest.mark.parametrize("full", [0, 1])
@pytest.mark.parametrize(("kind", "epoch"), [(1, 0), (2, 1), (3, 7), (2, 2**40)])
def test_a_control_rows_tag_says_its_kind_and_epoch_and_is_no_blobs(kind, epoch, full):
    assert control_tag(kind, epoch, full) < 0
    found = unpack_ordered([frames_of([control_rows(0, epoch, kind=kind, full=full)], 0)])
    assert found.controls == [(kind, epoch, bool(full))]


def test_a_buffer_is_flushed_when_it_grows_too_large():
    batches = [rows_of([0] * 100) for _ in range(4)]
    assert len(list(pack(batches, 0, KEY_GROUPS, flush_bytes=batches[0].nbytes + 1))) == 2


def test_blobs_hold_the_users_columns_and_the_hash():
    (batch,) = pack([rows_of([0])], 0, KEY_GROUPS)
    (table,) = tables_of_blobs([batch])
    assert table.column_names == ["value", "name", "at", "ckpt_key_hash"]


def test_key_groups_beyond_sixteen_bits_keep_apart():
    (batch,) = pack([rows_of([70000, 4464, 70000])], 0, KEY_GROUPS)
    assert batch.column("ckpt_shuffle_key").to_pylist() == [4464, 70000]


def test_the_task_id_may_be_read_late():
    (batch,) = pack(iter([rows_of([0, 1])]), lambda: 9, KEY_GROUPS)
    assert batch.column("ckpt_tag").to_pylist() == [9 << 32, (9 << 32) + 1]


def test_outputs_of_a_group_become_blobs_of_bounded_size(monkeypatch):
    monkeypatch.setattr(blobs, "MAX_BLOB_BYTES", 4000)
    table = pa.table({"v": np.arange(2000)})
    parts = blobs.outputs_to_blobs([table, table.slice(0, 0)])
    assert max(map(len, parts)) < 6000
    assert blobs.joined(parts).equals(table)


def test_output_blobs_become_rows_of_the_declared_schema():
    table = pa.table({"v": pa.array([1, 2], pa.int32())})
    batch = pa.RecordBatch.from_pydict({"ckpt_blob": [blobs.to_blob(table)]})
    rows = pa.Table.from_batches(explode_blobs([batch], pa.schema([pa.field("v", pa.int64())])))
    assert rows.to_pydict() == {"v": [1, 2]}
    assert rows.schema.field("v").type == pa.int64()


def test_a_slice_costs_only_its_own_bytes():
    table = pa.table({"v": np.arange(100_000), "s": [str(i) for i in range(100_000)]})
    assert len(blobs.to_blob(table.slice(50_000, 10))) < 2000


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_blob_is_the_table(size):
    table = pa.table({"v": pa.array(range(size), pa.int64()), "s": pa.array(["x"] * size, pa.string())})
    assert blobs.from_blob(blobs.to_blob(table)).equals(table)


def test_rows_of_a_batch_beyond_arrows_offsets_are_refused_with_the_limits_of_a_batch():
    """Arrays of nulls take no memory; of texts, the limit is 2 GiB."""
    many = 1_100_000_000
    arrays = pa.ListArray.from_arrays(pa.array([0, many], pa.int32()), pa.nulls(many))
    blob = blobs.to_blob(pa.table({"rows": arrays}))
    with pytest.raises(ConfigInvalid, match="rows of one key group in a batch are too large") as refused:
        blobs.joined([blob, blob])
    assert "maxOffsetsPerTrigger" in refused.value.hint
