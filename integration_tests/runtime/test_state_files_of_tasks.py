"""State files of a job with few tasks and many key groups: their number is that of the tasks, and every reader gets them."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark import cloudpickle
from pyspark.sql.types import StructType
from runtime_kit import Bench, drain, latest, totals

import spark_ckpt as ckpt
from spark_ckpt.coordination.full_snapshots import asking
from spark_ckpt.coordination.markers import BARRIER
from spark_ckpt.store.location import Location
from spark_ckpt.tasks.group_host import GroupHost
from spark_ckpt.tasks.operators import aggregations
from spark_ckpt.tasks.packing import control_tag

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

KEYS = [f"key {number}" for number in range(60)]


def run(bench: Bench, tasks: int, value: int) -> ckpt.Run:
    """Run with `tasks` tasks on one more row for every key."""
    bench.put(*((key, value) for key in KEYS))
    job = bench.job(key_groups=24, shuffle_partitions=tasks)
    totals(job.source("in", bench.source())).to(bench.sink(), name="out")
    return drain(job)


@pytest.mark.long  # in the gate: tests/runtime/test_shared_state_files.py; other numbers of tasks in test_jobs.py
def test_files_of_an_epoch_grow_with_tasks_and_runs_with_other_numbers_of_tasks_restore_from_them(bench: Bench) -> None:
    for tasks, value in [(2, 1), (3, 10), (1, 100)]:
        epoch = run(bench, tasks, value).epochs()[-1].epoch
        snapshot = bench.store().log.manifest(epoch).operators["totals"]
        new = [file for file in snapshot.files if file.incarnation == max(each.incarnation for each in snapshot.files)]
        assert len({file.path for file in new}) == tasks * len({file.epoch for file in new})
        assert len({group for file in new for group in file.key_groups}) > 15, "key groups with keys"
    assert latest(bench.values()) == dict.fromkeys(KEYS, 111)

    store = bench.folder / "store"
    assert sorted(ckpt.read_state(str(store), "totals")["total"].to_pylist()) == [111] * 60
    # Spark and Delta read whole files, in which each range has its own footer before the file's footer
    state = DeltaTable(str(store / "state" / "totals"))
    assert len(state.file_uris()) == 6
    assert bench.spark.read.parquet(*state.file_uris()).where("ckpt_epoch > 0").count() == 180
    rows = QueryBuilder().register("t", state).execute("select * from t where ckpt_key_group >= 0").read_all()
    assert pa.table(rows).num_rows == 180


def test_a_barrier_brings_every_key_group_one_bit_about_full_snapshots(bench: Bench) -> None:
    counting = aggregations.RunningAggregates(
        {"n": aggregations.count()}, StructType().add("k", "long"), ["k"], "each row"
    )
    host = GroupHost(
        name="totals", keys=("k",), operator=counting, key_groups=50, tasks=3, incarnation=1, base_epoch=0, base_watermark_ms=0,
        base_late_ms=0, chains={}, location=Location(str(bench.folder / "state")), cache="", earlier="",
    )  # fmt: skip
    asked = frozenset({0, 3, 4, 17, 38, 39})
    text = asking({"other": frozenset({1}), "totals": asked})
    for full, wanted in [(text, asked), (asking({"other": frozenset({1})}), frozenset()), ("", frozenset())]:
        markers = bench.spark.createDataFrame([(BARRIER, 7, full)], "kind int, epoch long, full_groups string")
        rows = host.control(markers).collect()
        assert {key: (tag, bytes(blob)) for key, tag, blob in rows} == {
            host.shuffle_keys[group]: (control_tag(BARRIER, 7, int(group in wanted)), b"") for group in range(50)
        }
