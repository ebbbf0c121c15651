"""Bad input, wrong names and unreachable places: the user's choice is followed, or the start raises a clear error."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource
from spark_ckpt_kafka import KafkaSink, KafkaSource

import spark_ckpt as ckpt
from integration_tests.broker import Broker, free_ports
from integration_tests.survival.job import KafkaJob
from integration_tests.survival.ledger import create_topic
from integration_tests.survival.session import TIMEOUT_S, Place, drained
from spark_ckpt.errors import BadRecord, CkptError, GraphInvalid, RunFailed, SinkInvalid, SourceInvalid
from spark_ckpt.store.store import Store

pytestmark = pytest.mark.spark
RECORD = "k string, v long"
GOOD, BAD = '{"k": "a", "v": 1}', '{"k": "a", "v": "no number"}'


# -- records that cannot be parsed ------------------------------------------------------------------------------------


@pytest.mark.long  # in the gate: integration_tests/kafka/test_registry.py, integration_tests/runtime/test_users_errors.py
@pytest.mark.kafka
def test_a_bad_record_ends_the_run_and_is_named(place: Place, broker: Broker) -> None:
    """Without a retry: the next incarnation would read the same record."""
    topic = create_topic(broker.servers, "bad")
    producer = Producer({"bootstrap.servers": broker.servers})
    for value in (GOOD, GOOD, BAD, GOOD):
        producer.produce(topic, value.encode(), b"a", 3)
    assert producer.flush(30) == 0
    job = place.job()
    rows = job.source("rows", KafkaSource(broker.servers, topic)).parse("value", RECORD, alias="r").select("r.*")
    rows.groupBy("k").agg("each row", total=ckpt.sum("v")).to(place.sink(), name="out")

    run = job.start()
    with pytest.raises(BadRecord) as raised:
        run.awaitTermination(TIMEOUT_S)

    message = str(raised.value)
    assert f'"topic":"{topic}"' in message
    assert '"partition":3' in message
    assert '"offset":2' in message
    assert "no number" in message
    assert run.incarnation == 1
    assert place.output() == []


def _dropping(place: Place, **settings: object) -> ckpt.Job:
    job = place.job(**settings)
    texts = job.source("rows", place.source("text string"))
    rows = texts.parse("text", RECORD, alias="r", on_error="drop").select("r.*")
    rows.groupBy("k").agg("each row", count=ckpt.count()).to(place.sink(), name="out")
    return job


def _texts(*values: str) -> list[dict[str, object]]:
    return [{"text": value} for value in values]


@pytest.mark.long  # in the gate: integration_tests/runtime/test_jobs.py, on a shared session
def test_dropped_records_are_counted_and_kept_exactly_once(place: Place, crash: Callable[[str], None]) -> None:
    """In the progress, in the manifests and in the side table, although an epoch that had them was lost."""
    side = str(place.folder / "side")
    place.write(1, _texts(GOOD, BAD, GOOD))
    place.write(2, _texts(BAD, GOOD, "{"))
    crash("EPOCH_COMMITTING:raise:2")
    job = _dropping(place, max_failed_epochs=0)
    job.rejectsTo(DeltaSink(side))
    with pytest.raises(RunFailed):
        job.start(availableNow=True).awaitTermination(TIMEOUT_S)
    crash("")

    again = _dropping(place)
    again.rejectsTo(DeltaSink(side))
    run = drained(again)

    kept = sorted(row["record"] for row in place.output(side))
    assert kept == sorted([BAD, BAD, "{"])
    assert all(row["reason"] for row in place.output(side))
    assert sorted(row["count"] for row in place.output()) == [1, 2, 3]
    assert run.lastProgress["totals"]["rejected"] == 3
    log = Store.open(str(place.store), "cheap").log
    lineage = [log.manifest(brief.epoch) for brief in log.state().lineage()]
    assert sum(sum(each.rejected.values()) for each in lineage) == 3


@pytest.mark.long  # in the gate: integration_tests/runtime/test_jobs.py
def test_records_dropped_before_and_after_the_operator_are_all_counted(place: Place) -> None:
    """Two operations that reject records, in tasks of one partition number."""
    place.write(1, _texts(GOOD, BAD, GOOD))
    job = place.job(shuffle_partitions=1)
    texts = job.source("rows", place.source("text string"))
    rows = texts.parse("text", RECORD, alias="r", on_error="drop").select("r.*")
    counted = rows.groupBy("k").agg("each row", count=ckpt.count())
    odd = counted.withColumn("again", F.when(F.col("count") == 1, F.lit("{")).otherwise(F.lit("{}")))
    odd.parse("again", "x long", on_error="drop").to(place.sink(), name="out")

    run = drained(job)

    assert run.lastProgress["totals"]["rejected"] == 2


@pytest.mark.long  # in the gate: aborted_counts_are_dropped in tests/simulator/host_bugs.py
@pytest.mark.kafka
@pytest.mark.kill
def test_dropped_records_of_a_killed_driver_are_counted_once(job: KafkaJob, spark: SparkSession) -> None:
    job.ledger.write(6_000)
    job.ledger.write_garbage(40)
    job.ledger.write(6_000)
    with job.lives.start("--on-error", "drop") as driver:
        driver.wait_for_events("committed", 2)
        driver.kill()
    job.lives.drain_on(spark, "--on-error", "drop")

    job.check_exact()
    epochs = {event["epoch"]: event["rejected"] for each in job.lives.drivers for event in each.events("committed")}
    assert sum(epochs.values()) == 40


# -- clear errors at the start ----------------------------------------------------------------------------------------


def _said(error: CkptError, *words: str) -> None:
    assert all(word in str(error) for word in words), str(error)
    assert error.hint


@pytest.mark.kafka
def test_a_missing_topic_is_reported_at_once(place: Place, broker: Broker) -> None:
    with pytest.raises(SourceInvalid) as source:
        place.job().source("rows", KafkaSource(broker.servers, "no-such-topic"))
    job = place.job()
    rows = job.source("rows", place.source()).select(F.lit("x").alias("value"))
    rows.to(KafkaSink(broker.servers, "no-such-topic"))
    with pytest.raises(SinkInvalid) as sink:
        job.start()

    _said(source.value, "no-such-topic")
    _said(sink.value, "no-such-topic")


def test_an_unreachable_broker_is_reported_within_seconds(place: Place) -> None:
    (port,) = free_ports(1)
    began_s = time.monotonic()

    with pytest.raises(SourceInvalid) as raised:
        place.job().source("rows", KafkaSource(f"127.0.0.1:{port}", "topic"))

    assert time.monotonic() - began_s < 120
    _said(raised.value, f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    "operation",
    [
        lambda rows: rows.select("nothing"),
        lambda rows: rows.filter("nothing > 1"),
        lambda rows: rows.groupBy("nothing"),
        lambda rows: rows.groupBy("k").agg(total=ckpt.sum("nothing")),
        lambda rows: rows.withWatermark("nothing", "1 second"),
    ],
)
def test_an_unknown_column_is_reported_on_its_line(place: Place, operation: Callable[[ckpt.Stream], Any]) -> None:
    rows = place.job().source("rows", place.source())

    with pytest.raises(GraphInvalid) as raised:
        operation(rows)

    _said(raised.value, "nothing")


def test_two_sinks_of_one_name_are_refused(place: Place) -> None:
    rows = place.job().source("rows", place.source())
    rows.to(place.sink(), name="out")

    with pytest.raises(GraphInvalid) as raised:
        rows.to(DeltaSink(str(place.folder / "other")), name="out")

    _said(raised.value, "out")


def test_a_missing_folder_and_a_wrong_schema_are_reported_at_once(place: Place) -> None:
    with pytest.raises(SourceInvalid):
        place.job().source("rows", FilesSource(str(place.folder / "none"), "json", "k string"))
    place.write(1, [{"k": "a", "v": 1, "n": 1}])
    drained_job = place.job()
    drained_job.source("rows", place.source()).to(place.sink(), name="out")
    drained(drained_job)
    other = place.job()
    other.source("rows", place.source()).select(F.lit(1).alias("x")).to(place.sink(), name="out")

    with pytest.raises(SinkInvalid):
        other.start()
