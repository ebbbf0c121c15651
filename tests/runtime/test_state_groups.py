"""Imported state becomes the files that an operator restores from: each key once, in its group, ordered by hash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_ckpt.epochs.records import StateFile
from spark_ckpt.errors import AdoptionRefused, EpochDamaged
from spark_ckpt.store.location import Location
from spark_ckpt.tasks.rows import KEY_GROUP, NO_TIMEOUT, StateSchema
from spark_ckpt.tasks.state.group_state import KeyGroupState
from spark_ckpt.tasks.state.levels import LevelCache, range_ref
from spark_ckpt.tasks.state.state_groups import GroupWriter

SCHEMA = StateSchema(pa.schema([("k", pa.float64())]), pa.schema([("v", pa.list_(pa.int64()))]))
GROUPS = 4
Row = tuple[float | None, int, list[int] | None, int | None]
"""Key, hash, state, timeout in ms."""


def writer(folder: Path) -> GroupWriter:
    return GroupWriter("sums", SCHEMA, GROUPS, Location(str(folder / "state")), 1, 1)


def batches(rows: list[Row], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """As Spark sorts them: by group, then by hash."""
    ordered = sorted(rows, key=lambda row: (row[1] % GROUPS, row[1]))
    columns = {
        "k": pa.array([row[0] for row in ordered], pa.float64()),
        "v": pa.array([row[2] for row in ordered], pa.list_(pa.int64())),
        "ckpt_op": pa.array([row[2] is None for row in ordered]).cast(pa.int8()),
        "ckpt_timeout_ms": pa.array([row[3] for row in ordered], pa.int64()),
        "ckpt_key_hash": pa.array([row[1] for row in ordered], pa.int64()),
        KEY_GROUP: pa.array([row[1] % GROUPS for row in ordered], pa.int32()),
    }
    return iter(pa.table(columns).to_batches(batch_rows))


def written(folder: Path, rows: list[Row], batch_rows: int = 3) -> list[dict[str, object]]:
    files = [row for batch in writer(folder).write(batches(rows, batch_rows)) for row in batch.to_pylist()]
    return [{**row, "file": StateFile.model_validate_json(row["file"])} for row in files]


def restored(folder: Path, files: list[dict[str, object]], group: int) -> KeyGroupState:
    refs = [range_ref(each["file"], group) for each in files if group in each["file"].key_groups]
    cache = LevelCache(folder / "cache", writer(folder).location, SCHEMA, "sums")
    return KeyGroupState.restored(SCHEMA, cache, group, refs)


@pytest.mark.parametrize("batch_rows", [1, 3, 1000])
def test_an_operator_finds_every_key_with_its_state_and_timeout(tmp_path, batch_rows):
    rows: list[Row] = [(float(n), (n * 7919) - 300, [n] * (n % 3), 1000 + n if n % 2 else None) for n in range(60)]
    files = written(tmp_path, rows, batch_rows)
    assert [each["file"].key_groups for each in files] == [{0, 1, 2, 3}]
    assert sum(each["file"].rows for each in files) == 60
    assert sum(each["timed"] for each in files) == 30
    for key, hash_, state, timeout in rows:
        found = restored(tmp_path, files, hash_ % GROUPS).resolve(pa.table({"k": [key]}), np.array([hash_]))
        assert found.state.to_pylist() == [{"v": state}]
        assert found.timeout_ms.tolist() == [NO_TIMEOUT if timeout is None else timeout]


def test_a_key_that_has_only_a_timeout_is_called_when_it_is_due(tmp_path):
    files = written(tmp_path, [(1.0, 5, None, 700), (2.0, 9, [1], None)])
    assert [(each["timed"], each["stateless"]) for each in files] == [(1, 1)]
    group = restored(tmp_path, files, 1)
    assert group.earliest_timeout_ms == 700
    due = group.expired(701)
    assert (due.keys.to_pylist(), due.resolved.exists.tolist()) == ([{"k": 1.0}], [False])


def test_a_null_is_a_key_as_any_other(tmp_path):
    files = written(tmp_path, [(None, 42, [3], None)])
    found = restored(tmp_path, files, 42 % GROUPS).resolve(
        pa.table({"k": pa.array([None], pa.float64())}), np.array([42])
    )
    assert found.state.to_pylist() == [{"v": [3]}]


@pytest.mark.parametrize("keys", [(0.0, -0.0), (float("nan"), float("nan"))])
def test_two_keys_that_a_job_cannot_distinguish_are_refused(tmp_path, keys):
    with pytest.raises(AdoptionRefused, match="1 key of the query is another one's equal") as refused:
        written(tmp_path, [(keys[0], 8, [1], None), (keys[1], 8, [2], None), (3.0, 12, [3], None)])
    assert refused.value.hint


def test_a_key_that_came_to_another_group_is_not_written(tmp_path):
    [batch] = batches([(1.0, 5, [1], None)], 10)
    moved = batch.set_column(batch.schema.get_field_index(KEY_GROUP), KEY_GROUP, pa.array([2], pa.int32()))
    with pytest.raises(EpochDamaged, match="group 2, which it is not of"):
        list(writer(tmp_path).write([moved]))


def test_no_rows_make_no_file(tmp_path):
    assert written(tmp_path, []) == []
