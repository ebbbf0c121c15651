"""Rows of unpublished epochs are looked for where their table is now."""

import shutil
from types import SimpleNamespace

from incarnation_kit import HERE, JOB, SCHEMA, FakeSink, FakeSource

from spark_ckpt.config import JobConfig
from spark_ckpt.connector import StagePlan
from spark_ckpt.driver.job_plan import planned
from spark_ckpt.epochs.identity import Found
from spark_ckpt.epochs.records import Manifest, StagedFileRecord, StagedOutput
from spark_ckpt.plan.graph import SinkBinding, SourceNode
from spark_ckpt.store.store import Store

SPARK = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))


class TableSink(FakeSink):
    """A sink whose rows are staged in its own table."""

    def __init__(self, root):
        super().__init__()
        self.root = root

    def stage(self, schema):
        return StagePlan(root=str(self.root))

    def identity(self, spark):
        return {"path": str(self.root)}


def commit(store, table):
    file = StagedFileRecord("rows", 1, 1, 0, 0, 0, 0)
    output = StagedOutput(sink="out", root=str(table), files=(file,), rows=1)
    store.log.commit_epoch(
        Manifest(job=JOB, epoch=1, incarnation=1, attempt="a", created_ms=1, outputs={"out": output})
    )


def test_a_start_after_the_confirmed_one_finds_the_rows_of_a_moved_table(tmp_path):
    """The job committed an epoch after the move, so that a start needs no `accept_moved` any more."""
    store = Store.open(str(tmp_path / "store"), JOB)
    store.log.begin_incarnation(HERE)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "rows").write_bytes(b"1")
    commit(store, tmp_path / "table")
    shutil.move(tmp_path / "table", tmp_path / "moved")

    source = SourceNode("in", FakeSource(), SCHEMA)
    sinks = [SinkBinding("out", TableSink(tmp_path / "moved"), source, SCHEMA)]
    plan = planned(SPARK, JOB, JobConfig.of({}, {}), store, sinks)
    point = plan.store.log.begin_incarnation(HERE, takeover=True)
    assert [manifest.epoch for manifest in point.unpublished["out"]] == [1]


def test_a_standby_finds_the_rows_of_a_table_that_was_replaced_or_moved_while_it_waited(tmp_path):
    store, sink = Store.open(str(tmp_path / "store"), JOB), TableSink(tmp_path / "table")
    sinks = [SinkBinding("out", sink, SourceNode("in", FakeSource(), SCHEMA), SCHEMA)]
    plan = planned(SPARK, JOB, JobConfig.of({}, {}), store, sinks)
    store.log.begin_incarnation(HERE)
    sink.root = tmp_path / "other"
    sink.root.mkdir()
    (sink.root / "rows").write_bytes(b"1")
    commit(store, sink.root)

    taking_over = plan.with_found(Found(plan.found.sources, {"out": sink.identity(None)}))
    point = taking_over.store.log.begin_incarnation(HERE, takeover=True)
    assert [manifest.epoch for manifest in point.unpublished["out"]] == [1]
