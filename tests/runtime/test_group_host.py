"""One key group in one micro-batch, called as by Spark."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkValueError
from pyspark.sql.types import LongType, StringType, StructField, StructType

import spark_ckpt.tasks.operators.aggregations as agg
from spark_ckpt.coordination.markers import BARRIER, OPEN
from spark_ckpt.store.location import Location
from spark_ckpt.tasks.group_host import GroupHost
from spark_ckpt.tasks.key_hash import key_hash
from spark_ckpt.tasks.onward import Onward
from spark_ckpt.tasks.operators.operator import Binding
from spark_ckpt.tasks.operators.vectorized import KeyResult, VectorizedOperator
from spark_ckpt.tasks.packing import control_tag, pack, unpack_ordered
from spark_ckpt.tasks.rows import BLOB, KEY_HASH, SHUFFLE_KEY, TAG

ROW = StructType([StructField("k", StringType()), StructField("v", LongType())])
GROUP, KEY_GROUPS = 3, 16


class State:
    """Spark's state of one group."""

    def __init__(self) -> None:
        self.held = None

    @property
    def exists(self):
        return self.held is not None

    @property
    def get(self):
        return self.held

    def update(self, value):
        self.held = value

    def getCurrentProcessingTimeMs(self):
        return 0

    def getCurrentWatermarkMs(self):
        raise PySparkValueError("no watermark")


class Timed(State):
    """Spark's state of one group under a watermark."""

    timeout_ms = None

    def getCurrentWatermarkMs(self):
        return 5000

    def setTimeoutTimestamp(self, timeout_ms):
        self.timeout_ms = timeout_ms


class Reported:
    """Collect reports, as (step, scope, body)."""

    def __init__(self) -> None:
        self.bodies = []

    def send(self, step, scope, body):
        self.bodies.append(body)


@pytest.fixture
def host(tmp_path):
    operator = agg.RunningAggregates({"total": agg.sum("v")}, ROW, ["k"], "each row")
    return GroupHost(
        name="sum", keys=("k",), operator=operator, key_groups=KEY_GROUPS, tasks=KEY_GROUPS, incarnation=2, base_epoch=4,
        base_watermark_ms=0, base_late_ms=0, chains={}, location=Location(str(tmp_path / "state")), cache=str(tmp_path / "cache"),
        earlier=str(tmp_path / "beside"),
    )  # fmt: skip


def packed(keys, *markers, group=GROUP, full=0):
    """One batch of the shuffle: rows of `keys`, and control rows, as Spark makes them."""
    rows = pa.table({"k": keys, "v": [1] * len(keys), KEY_HASH: pa.array([group] * len(keys), pa.int64())})
    frames = [batch.to_pandas() for batch in pack(rows.to_batches(), 0, range(KEY_GROUPS))]
    controls = [{SHUFFLE_KEY: group, TAG: control_tag(*marker, full), BLOB: b""} for marker in markers]
    frames += [pd.DataFrame(controls)] if controls else []
    return pd.concat(frames)


def call(host, state, frame, group=GROUP):
    reported = Reported()
    list(host.runner(reported)((host.shuffle_keys[group],), iter([frame]), state))
    return reported.bodies


def rows_of(account):
    """Rows of each file by key group."""
    return [{group: rows for group, rows, *_ in file["ranges"]} for file in account["files"]]


def test_a_barrier_is_acknowledged_with_the_groups_changes(host):
    (account,) = call(host, State(), packed(["a", "b", "a"], (BARRIER, 5)))

    assert (account["epoch"], account["groups"], rows_of(account)) == (5, [GROUP], [{GROUP: 2}])


def test_of_two_barriers_in_one_batch_only_the_newer_is_answered_and_nothing_is_written_twice(host):
    """The older epoch was aborted. With an answer, its file would be in the newer one's account, and state would be lost."""
    state = State()

    (account,) = call(host, state, packed(["a", "b"], (OPEN, 4), (BARRIER, 5), (BARRIER, 6)))

    assert (account["epoch"], account["files"][0]["epoch"], rows_of(account)) == (6, 6, [{GROUP: 2}])
    assert len(list(Path(host.location.uri).rglob("*.parquet"))) == 1


def test_a_group_without_changes_acknowledges_without_a_file(host):
    state = State()
    call(host, state, packed(["a"], (BARRIER, 5)))

    (account,) = call(host, state, packed([], (BARRIER, 6)))

    assert (account["epoch"], account["groups"], account["files"]) == (6, [GROUP], [])


def test_spark_calls_the_group_of_a_timeout_at_the_watermark_when_the_watermark_moves(host):
    """Spark calls a group when the watermark is past its timeout."""

    def waiting(batch):
        return KeyResult(timeout_ms=[5000] * len(batch))

    operator = VectorizedOperator(waiting, ROW, ["k"], ROW, StructType([]), "EventTimeTimeout")
    host, state = replace(host, operator=operator.bind(Binding("waiting", "v"))), Timed()
    call(host, state, packed(["a"]))
    assert state.timeout_ms == 5000


def test_output_for_the_next_operator_comes_packed_by_its_keys(host):
    onward = Onward(
        {"who": "k", "n": "total"}, pa.schema([("who", pa.string()), ("n", pa.int64())]), ("who",), range(5)
    )
    run = host.runner(Reported(), onward)

    given = packed(["a", "b", "a", "c"])
    frame = pd.concat(run((host.shuffle_keys[GROUP],), iter([given]), State()))

    rows = {group: unpack_ordered([part]).rows for group, part in frame.groupby(SHUFFLE_KEY)}
    found = {(row["who"], row["n"]): (group, row[KEY_HASH]) for group, each in rows.items() for row in each.to_pylist()}
    assert sorted(found) == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]
    wanted = key_hash(pa.table({"who": [who for who, _ in found]}), ["who"]).tolist()
    assert list(found.values()) == [(hashed % 5, hashed) for hashed in wanted]
    assert sorted(frame[TAG]) == [(GROUP << 32) + number for number in range(len(frame))]


def test_without_output_the_next_operator_gets_nothing(host):
    onward = Onward({"k": "k"}, pa.schema([("k", pa.string())]), ("k",), range(5))
    assert (
        list(host.runner(Reported(), onward)((host.shuffle_keys[GROUP],), iter([packed([], (BARRIER, 5))]), State()))
        == []
    )


def test_the_first_call_of_an_incarnation_removes_old_levels_of_its_host(host, tmp_path):
    """An executor has no driver that could remove them."""
    folders = {number: tmp_path / f"i{number}" for number in (7, 8, 9, 10)}
    for folder in folders.values():
        (folder / "sum").mkdir(parents=True)
    state = State()
    call(replace(host, cache=str(folders[10] / "sum")), state, packed(["a"]))
    assert [number for number, folder in folders.items() if folder.exists()] == [9, 10]


def test_a_rehearsal_of_a_standby_removes_no_levels(host, tmp_path):
    (tmp_path / "i7").mkdir()
    call(replace(host, cache=str(tmp_path / "standby-1-2-x" / "sum")), State(), packed(["a"]))
    assert (tmp_path / "i7").exists()
