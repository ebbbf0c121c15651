"""Events of an outbox arrive at listeners, as metrics and as lineage, and cost a batch less than a millisecond."""

from __future__ import annotations

import json
import pickle
import statistics
import time
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.types import LongType, StructField, StructType
from spark_ckpt_delta import DeltaSink

from spark_ckpt.connector import EpochOutput, PublishReceipt
from spark_ckpt.epochs.records import Manifest, StagedOutput
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import ConfigInvalid, PublishFailed
from spark_ckpt.events.listener import RunListener
from spark_ckpt.observability.lineage.datasets import Named, named, spark_source
from spark_ckpt.observability.metrics.meter import Meter
from spark_ckpt.observability.metrics.prometheus import Prometheus
from spark_ckpt.outbox.events import OutboxEvents
from spark_ckpt.outbox.outbox import BatchFunction, Outbox
from spark_ckpt.outbox.rule import BatchVerdict
from spark_ckpt.outbox.running import OutboxSettings
from tests.outbox.outbox_kit import batch

NAME = "orders"


def manifest(epoch: int) -> Manifest:
    return Manifest(
        job=NAME, epoch=epoch, incarnation=2, attempt="a", base=epoch - 1, created_ms=0, duration_ms=250, reason="batch",
        outputs={"gold": StagedOutput(sink="gold", rows=5), "alerts": StagedOutput(sink="alerts", rows=1)}, rows_out=6,
        spark_batch=batch(epoch),
    )  # fmt: skip


def output(epoch: int) -> EpochOutput:
    return EpochOutput(epoch=epoch, incarnation=2, previous=epoch - 1, root="", storage_options={}, files=())


def point(*unpublished: int) -> RecoveryPoint:
    return RecoveryPoint(
        incarnation=2,
        manifest=manifest(4),
        last=4,
        restored_from="latest",
        unpublished={"alerts": [manifest(epoch) for epoch in unpublished]},
    )


def a_batch(events: OutboxEvents, epoch: int) -> None:
    events.committed(manifest(epoch), 12)
    for sink, rows in (("gold", 5), ("alerts", 1)):
        events.published(sink, output(epoch), PublishReceipt(epoch, rows, False, {"parts_ms": {"send": 3}}), 20)
    events.batch_ended(epoch, BatchVerdict.NEW, 5, 300)


@pytest.fixture
def scraped():
    """An outbox's events with their own Prometheus registry, and its samples by name and labels."""
    registry = CollectorRegistry()
    events = OutboxEvents(NAME, [Meter(NAME, Prometheus(registry), now_s=lambda: 1_700_000_000.5)])

    def value(name: str, **labels: str) -> float:
        families = text_string_to_metric_families(generate_latest(registry).decode())
        samples = [each for family in families for each in family.samples]
        [found] = [each.value for each in samples if each.name == name and labels.items() <= each.labels.items()]
        return found

    return events, value


@pytest.fixture
def sinks():
    return {name: (DeltaSink("tables/gold"), StructType([StructField("n", LongType())])) for name in ("gold", "alerts")}


def test_the_metrics_of_a_batch(scraped, sinks):
    events, value = scraped
    events.began("id", point(3, 4), sinks)
    assert value("spark_ckpt_unpublished_epochs", sink="alerts") == 2
    assert value("spark_ckpt_unpublished_epochs", sink="gold") == 0
    a_batch(events, 5)
    events.batch_ended(5, BatchVerdict.AGAIN, 0, 100)
    assert value("spark_ckpt_epochs_committed_total", reason="batch") == 1
    assert value("spark_ckpt_staged_rows_total", sink="gold") == 5
    assert value("spark_ckpt_published_rows_total", sink="alerts") == 1
    assert value("spark_ckpt_unpublished_epochs", sink="alerts") == 0
    assert value("spark_ckpt_last_publish_timestamp_seconds", sink="gold") == 1_700_000_000.5
    assert value("spark_ckpt_epoch_part_duration_seconds_sum", part="publish", sink="gold") == 0.02
    assert value("spark_ckpt_epoch_part_duration_seconds_sum", part="staging") == 0.25
    assert value("spark_ckpt_outbox_batches_total", verdict="new") == 1
    assert value("spark_ckpt_outbox_batches_total", verdict="again") == 1
    assert value("spark_ckpt_running") == 1
    events.ended()
    assert value("spark_ckpt_running") == 0


def test_a_repeated_attempt_is_counted_by_sink_and_condition(scraped, sinks):
    events, value = scraped
    events.began("id", point(), sinks)
    events.retries(PublishFailed("away", sink="gold"), 2, 200, "gold", 5)
    events.retries(PublishFailed("away", sink="gold"), 3, 400, "gold", 5)
    assert value("spark_ckpt_retries_total", sink="gold", condition="CKPT_PUBLISH_FAILED") == 2


def test_the_metrics_of_a_batch_cost_less_than_a_millisecond(scraped, sinks):
    events, _ = scraped
    events.began("id", point(), sinks)
    took_s = []
    for epoch in range(5, 105):
        began_s = time.thread_time()
        a_batch(events, epoch)
        took_s.append(time.thread_time() - began_s)
    assert statistics.median(took_s) < 0.001


def test_a_failing_listener_does_not_end_the_query(sinks):
    class Broken(RunListener):
        def onEpochCommitted(self, event):
            raise ValueError("the program's own")

    batches = []
    works = RunListener()
    works.onEpochCommitted = lambda event: batches.append(event.detail["batch"])
    events = OutboxEvents(NAME, [Broken(), works])
    events.began("id", point(), sinks)
    events.committed(manifest(5), 1)
    assert batches == [5]


def test_lineage_names_the_inputs_of_the_progress_and_every_sink(tmp_path, monkeypatch, sinks):
    path = tmp_path / "events.jsonl"
    for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(path), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    sources = [{"description": "FileStreamSource[file:/data/in]", "endOffset": '{"logOffset":3}'}]
    query = SimpleNamespace(lastProgress={"sources": sources})
    events = OutboxEvents(NAME, lineage="tests", query=lambda: query)
    events.began("0b1f1e0e-7d1c-4a6b-9b59-0d8a8ac1f6b2", point(), sinks)
    events.committed(manifest(5), 1)
    events.ended()
    sent = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["eventType"] for each in sent] == ["START", "RUNNING", "COMPLETE"]
    assert [(each["namespace"], each["name"]) for each in sent[1]["inputs"]] == [("file", "/data/in")]
    assert [each["outputFacets"]["outputStatistics"]["rowCount"] for each in sent[1]["outputs"]] == [5, 1]


def test_lineage_continues_without_inputs_after_the_session_ended(tmp_path, monkeypatch, sinks):
    path = tmp_path / "events.jsonl"
    for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(path), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)

    class Ended:
        @property
        def lastProgress(self):
            raise ConnectionError("the JVM has ended")

    events = OutboxEvents(NAME, lineage="tests", query=Ended)
    events.began("0b1f1e0e-7d1c-4a6b-9b59-0d8a8ac1f6b2", point(), sinks)
    events.ended(PublishFailed("away", sink="gold"))
    sent = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["eventType"] for each in sent] == ["START", "FAIL"]


@pytest.mark.parametrize(
    ("description", "offset", "names"),
    [
        ("KafkaV2[Subscribe[orders, returns]]", None, [Named("kafka", "orders"), Named("kafka", "returns")]),
        ("KafkaV2[SubscribePattern[o.*]]", {"orders": {"0": 5}}, [Named("kafka", "orders")]),
        ("FileStreamSource[file:/data/in]", {"logOffset": 1}, [Named("file", "/data/in")]),
        ("FileStreamSource[s3a://lake/in]", None, [Named("s3://lake", "in")]),
        ("DeltaSource[file:/data/table]", None, [Named("file", "/data/table")]),
        ("RateStreamV2[rowsPerSecond=1]", None, [Named("RateStreamV2", "rowsPerSecond=1")]),
        ("MemoryStream", None, [Named("MemoryStream", "MemoryStream")]),
    ],
)
def test_a_source_is_named_by_its_description(description, offset, names):
    assert named(spark_source(description, offset)) == names


@pytest.mark.parametrize("wrong", [{"metrics": "graphite"}, {"metrics": ["prometheus://x"]}, {"lineage": " "}])
def test_an_unknown_target_is_refused_when_the_outbox_is_created(wrong):
    with pytest.raises(ConfigInvalid):
        Outbox("stores/o", name=NAME, checkpoint="checkpoints/o", sinks={"gold": DeltaSink("tables/gold")}, **wrong)


def test_metrics_and_lineage_reach_the_process_of_a_connect_server():
    settings = OutboxSettings("s", NAME, "c", {}, metrics=("otel",), lineage="prod")
    function = BatchFunction(settings)
    function.listeners, function.query = [lambda: None], object()
    there = pickle.loads(pickle.dumps(function))
    assert there.__getstate__().metrics == ("otel",)
    assert there.__getstate__().lineage == "prod"
    assert there.listeners is None
