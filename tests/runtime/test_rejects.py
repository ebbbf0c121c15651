"""Records that could not be parsed leave the stream: counted, written to a side table on request, never seen by the user."""

from __future__ import annotations

import json
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_ckpt.connector import StagePlan
from spark_ckpt.store.location import Location
from spark_ckpt.tasks.rejects import Diverter, divert_rejects, rejected_table
from spark_ckpt.tasks.rows import REJECT
from spark_ckpt.tasks.staging import SinkStage


class Reported:
    def __init__(self):
        self.sent = []

    def send(self, step, scope, body):
        self.sent.append((step, scope, body))


def rejection(**fields):
    return json.dumps({"reason": "not valid json", "record": "text", **fields})


def batch(*rejects):
    return pa.RecordBatch.from_pydict(
        {"v": pa.array(range(len(rejects)), pa.int64()), REJECT: pa.array(rejects, pa.string())}
    )


def values(batches):
    return [value for each in batches for value in each.column("v").to_pylist()]


def test_good_rows_pass_in_order_and_rejected_ones_are_counted():
    reported = Reported()
    batches = [batch(None, rejection(), None), batch(rejection()), batch(None)]
    passed = list(Diverter(reported, None, 4).divert(iter(batches)))
    assert values(passed) == [0, 2, 0]
    assert reported.sent == [("input", "rejected/4", {"rejected": 2})]


def test_the_hidden_column_never_passes():
    batches = [batch(None), batch(rejection()), batch()]
    for each in Diverter(Reported(), None, 0).divert(iter(batches)):
        assert each.schema.names == ["v"]


def test_nothing_is_reported_when_nothing_was_rejected():
    reported = Reported()
    assert values(Diverter(reported, None, 0).divert(iter([batch(None, None)]))) == [0, 1]
    assert reported.sent == []


def test_nothing_is_staged_without_a_side_table(tmp_path):
    list(Diverter(Reported(), None, 0).divert(iter([batch(rejection())])))
    assert list(tmp_path.iterdir()) == []


def test_the_side_table_gets_reason_position_and_record(tmp_path):
    reported = Reported()
    stage = SinkStage("rejected", StagePlan(), Location(str(tmp_path)), 2)
    rows = [rejection(topic="t", partition=3, offset=17), None, rejection(file="part-1", line=4)]
    list(Diverter(reported, stage, 1).divert(iter([batch(*rows)])))
    (_, _, counted), (step, scope, file) = reported.sent
    assert (counted, step, scope) == ({"rejected": 2}, "input", "rejected/1/file")
    found = pq.read_table(tmp_path / file["path"]).to_pylist()
    assert [json.loads(row["position"]) for row in found] == [
        {"offset": 17, "partition": 3, "topic": "t"}, {"file": "part-1", "line": 4},
    ]  # fmt: skip
    assert {(row["reason"], row["record"]) for row in found} == {("not valid json", "text")}


def test_a_failure_while_the_side_table_is_written_fails_the_task(tmp_path):
    def batches():
        yield batch(rejection())
        raise RuntimeError("upstream")

    stage = SinkStage("rejected", StagePlan(), Location(str(tmp_path)), 2)
    reported = Reported()
    with pytest.raises(RuntimeError, match="upstream"):
        list(Diverter(reported, stage, 1).divert(batches()))
    assert (reported.sent, list(tmp_path.iterdir())) == ([], [])


def test_a_task_that_rejects_every_record_keeps_one_batch_of_them_in_memory(tmp_path):
    """Python's memory is measured: the texts are Python's until they are written."""
    count, per_batch, size = 20, 100, 10_000
    batches = (batch(*[rejection(record="x" * size)] * per_batch) for _ in range(count))
    stage = SinkStage("rejected", StagePlan(compression="none"), Location(str(tmp_path)), 2)
    reported = Reported()
    tracemalloc.start()
    try:
        for _ in Diverter(reported, stage, 0).divert(batches):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < count * per_batch * size / 2
    assert reported.sent[0][2] == {"rejected": count * per_batch}
    assert reported.sent[1][2]["rows"] == count * per_batch


def test_a_record_without_a_position_has_an_empty_one():
    (row,) = rejected_table([rejection()]).to_pylist()
    assert row == {"reason": "not valid json", "position": "{}", "record": "text"}


def test_a_template_only_loses_the_column():
    class Template:
        columns = ("v", REJECT)

        def drop(self, name):
            return f"without {name}"

    assert divert_rejects(Template()) == f"without {REJECT}"
