"""Catalogues get a job's inputs and outputs as OpenLineage events."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime

import pytest
from openlineage.client.serde import Serde
from pyspark.sql.types import StructType

from spark_ckpt.epochs.records import Manifest, StagedFileRecord, StagedOutput
from spark_ckpt.events.listener import EpochEvent, IncarnationEvent
from spark_ckpt.observability.lineage.configured import dataset_end
from spark_ckpt.observability.lineage.datasets import Column, DatasetEnd, Named, named
from spark_ckpt.observability.lineage.openlineage import OpenLineage, run_id
from spark_ckpt.program_edges.sink import EdgeSink
from spark_ckpt.program_edges.source import EdgeSource

STORE_ID = "0b1f1e0e-7d1c-4a6b-9b59-0d8a8ac1f6b2"
KAFKA = DatasetEnd(
    "orders",
    {"kind": "kafka", "topic": "orders,returns", "servers": "broker:9092,b2:9092"},
    [Column("value", "binary")],
)
TABLE = DatasetEnd(
    "out", {"kind": "delta", "path": "s3://lake/totals"}, [Column("customer", "string"), Column("total", "double")]
)


class Kept:
    """A client that keeps its events, as JSON by the official serialiser."""

    def __init__(self):
        self.events = []

    def emit(self, event):
        self.events.append(json.loads(Serde.to_json(event)))


@pytest.fixture
def listening():
    """A listener, and its sent events."""
    client = Kept()
    now = lambda: datetime(2026, 11, 23, tzinfo=UTC)  # noqa: E731
    return OpenLineage(client, "prod", "totals", STORE_ID, [KAFKA], [TABLE], now), client.events


def manifest(epoch):
    file = StagedFileRecord(path="f.parquet", size_bytes=100, rows=7, lane=0, batch=0, task=0, part=0)
    return Manifest(
        job="totals", epoch=epoch, incarnation=3, attempt="a", base=epoch - 1, created_ms=0,
        cursors={"orders": {"orders": {"0": 42}, "returns": {"0": 5}}},
        outputs={"out": StagedOutput(sink="out", files=(file,), rows=7)},
    )  # fmt: skip


def test_an_epoch_event_has_the_cursor_of_each_input_and_the_written_rows(listening):
    listener, events = listening
    listener.onEpochCommitted(EpochEvent("totals", 8, 3, {}, manifest(8)))

    [event] = events
    assert (event["eventType"], event["job"]["namespace"], event["job"]["name"]) == ("RUNNING", "prod", "totals")
    inputs = {each["name"]: each for each in event["inputs"]}
    assert {each["namespace"] for each in event["inputs"]} == {"kafka://broker:9092"}
    assert inputs["orders"]["inputFacets"]["spark_ckpt_cursor"]["cursor"] == {"orders": {"0": 42}}
    assert inputs["returns"]["inputFacets"]["spark_ckpt_cursor"]["cursor"] == {"returns": {"0": 5}}
    [output] = event["outputs"]
    assert (output["namespace"], output["name"]) == ("s3://lake", "totals")
    statistics = output["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"]) == (7, 100)
    assert [each["name"] for each in output["facets"]["schema"]["fields"]] == ["customer", "total"]
    assert event["run"]["facets"]["spark_ckpt_epoch"]["epoch"] == 8


def test_an_incarnation_is_one_run_from_its_start_to_its_end(listening):
    listener, events = listening
    listener.onIncarnationStarted(IncarnationEvent("totals", 3, 7, "latest"))
    listener.onEpochCommitted(EpochEvent("totals", 8, 3, {}, manifest(8)))
    listener.onIncarnationEnded(IncarnationEvent("totals", 3, 8, "stopped"))

    assert [event["eventType"] for event in events] == ["START", "RUNNING", "COMPLETE"]
    assert {event["run"]["runId"] for event in events} == {run_id(STORE_ID, 3)}
    assert all(event["inputs"] and event["outputs"] for event in events)


def test_a_failed_incarnation_has_its_error(listening):
    listener, events = listening
    listener.onIncarnationEnded(IncarnationEvent("totals", 3, 8, "[CKPT_QUERY_FAILED] executor lost"))

    [event] = events
    assert event["eventType"] == "FAIL"
    assert event["run"]["facets"]["errorMessage"]["message"] == "[CKPT_QUERY_FAILED] executor lost"


def test_runs_of_different_incarnations_and_stores_have_different_ids():
    ids = {run_id(STORE_ID, 1), run_id(STORE_ID, 2), run_id("another", 1)}
    assert len({uuid.UUID(each) for each in ids}) == 3


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/in", Named("file", "/data/in")),
        ("file:///data/in/", Named("file", "/data/in")),
        ("s3a://lake/a/b", Named("s3://lake", "a/b")),
        ("gs://lake/a", Named("gs://lake", "a")),
        ("abfss://box@account.dfs.core.windows.net/a", Named("abfss://box@account.dfs.core.windows.net", "a")),
        ("s3://key:secret@lake/a", Named("s3://lake", "a")),
    ],
)
def test_paths_are_named_as_openlineage_names_them(path, expected):
    assert named(DatasetEnd("x", {"kind": "files", "path": path}, [])) == [expected]


def test_a_pattern_of_topics_is_replaced_by_the_read_topics():
    pattern = DatasetEnd("in", {"kind": "kafka", "topic": "orders-.*", "servers": "b:1"}, [])
    assert named(pattern, {"orders-eu": {"0": 1}}) == [Named("kafka://b:1", "orders-eu")]
    assert named(pattern) == []


def test_a_sink_with_a_topic_per_row_adds_no_topic_of_that_name():
    assert named(DatasetEnd("out", {"kind": "kafka", "topic": "(per row)", "servers": "b:1"}, [])) == []


def test_both_jobs_of_an_edge_name_the_same_dataset(tmp_path):
    """Otherwise a catalogue does not connect them."""
    store = str(tmp_path / "stores" / "orders")
    sent = dataset_end("paid", EdgeSink("paid").describe(), StructType(), store)
    read = dataset_end("in", EdgeSource("paid", store).describe(), StructType())
    assert named(sent) == named(read) == [Named("file", f"{store}/edges/paid")]


def test_a_connector_without_topic_and_path_is_named_by_its_kind():
    assert named(DatasetEnd("ledger", {"kind": "acme"}, [])) == [Named("acme", "ledger")]
