"""Beginner's mistakes that are refused without Spark: each raises one typed error, with a word of its advice.

Mistakes on streams of a job are in `integration_tests/runtime/test_first_mistakes.py`, those at the command line in
`tests/cli/test_user_mistakes.py`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from spark_ckpt_delta import DeltaSink, DeltaSource
from spark_ckpt_files import FilesSource
from spark_ckpt_kafka import KafkaSink, KafkaSource

import spark_ckpt as ckpt
from spark_ckpt.config import JobConfig
from spark_ckpt.errors import CkptError
from spark_ckpt.explained.explanation import explained
from spark_ckpt.tasks.operators.aggregations import RunningAggregates
from spark_ckpt.tasks.operators.keyed_function import KeyedFunction
from spark_ckpt.tasks.operators.operator import Binding, Clock
from spark_ckpt.tasks.state.group_state import KeyGroupState
from tests.runtime.operator_fixtures import MemoryStore, cache_of, with_hash

SERVERS = "localhost:9092"
K, V, TOTAL = StructField("k", StringType()), StructField("v", LongType()), StructField("total", LongType())
ROW, OUT, STATE = StructType([K, V]), StructType([K, TOTAL]), StructType([TOTAL])


def setting(**given: object) -> Callable[[], object]:
    return lambda: JobConfig.of(given, {})


def operator(function: object, mode: str = "append", timeout: str = "NoTimeout") -> object:
    return KeyedFunction(function, ROW, ["k"], OUT, STATE, mode, timeout)  # type: ignore[arg-type]


def aggregate(mode: str = "update", column: str = "v") -> object:
    return RunningAggregates({"total": ckpt.sum(column)}, ROW, ["k"], mode)


MISTAKES: dict[str, tuple[Callable[[], object], str, str]] = {
    # settings and durations
    "a setting is mistyped": (setting(intervall="5s"), "CONFIG_INVALID", "'interval'"),
    "a setting in camel case": (setting(keepEpochs=3), "CONFIG_INVALID", "'keep_epochs'"),
    "a conf key is mistyped": (
        lambda: JobConfig.of({}, {"spark.ckpt.publishtimeout": "5s"}),
        "CONFIG_INVALID",
        "'publish_timeout'",
    ),
    "an interval without a unit": (setting(interval="5"), "CONFIG_INVALID", "5m"),
    "an interval in words": (setting(interval="soon"), "CONFIG_INVALID", "every batch"),
    "an interval of True": (setting(interval=True), "CONFIG_INVALID", "5 seconds"),
    "a number out of range": (setting(key_groups=0), "CONFIG_INVALID", "key_groups"),
    # names of the packages
    "a name of ckpt is mistyped": (lambda: ckpt.sesion, "NAME_UNKNOWN", "'session'"),
    "a class of ckpt in lower case": (lambda: ckpt.outbox_, "NAME_UNKNOWN", "'Outbox'"),
    "a connector is looked for in ckpt": (lambda: ckpt.KafkaSource, "NAME_UNKNOWN", "from spark_ckpt_kafka import"),
    "a sink is looked for in ckpt": (lambda: ckpt.DeltaSnik, "NAME_UNKNOWN", "'DeltaSink'"),
    "a type of connectors is looked for in ckpt": (lambda: ckpt.StagePlan, "NAME_UNKNOWN", "spark_ckpt.connector"),
    "a connector's class is mistyped": (
        lambda: __import__("spark_ckpt_kafka").KafkaSinc,
        "NAME_UNKNOWN",
        "'KafkaSink'",
    ),
    "a connector of a session is mistyped": (lambda: ckpt.session("x", "kafak"), "CONNECTOR_UNKNOWN", "spark-ckpt con"),
    # Kafka
    "Spark's subscribe": (lambda: KafkaSource(SERVERS, subscribe="t"), "CONFIG_INVALID", "topic="),
    "Spark's startingOffsets": (
        lambda: KafkaSource(SERVERS, "t", startingOffsets="latest"),
        "CONFIG_INVALID",
        "start=",
    ),
    "Spark's option as an argument": (
        lambda: KafkaSource(SERVERS, "t", maxOffsetsPerTrigger=5),
        "CONFIG_INVALID",
        "options={",
    ),
    "Spark's start by time": (
        lambda: KafkaSource(SERVERS, "t", options={"startingOffsetsByTimestamp": "{}"}),
        "CONFIG_INVALID",
        "start=datetime(",
    ),
    "Spark's startingTimestamp": (
        lambda: KafkaSource(SERVERS, "t", startingTimestamp=1),
        "CONFIG_INVALID",
        "datetime(",
    ),
    "a time without a zone": (
        lambda: KafkaSource(SERVERS, "t", start=dt.datetime(2026, 11, 28)),
        "CONFIG_INVALID",
        "timezone.utc",
    ),
    "an argument of Kafka is mistyped": (lambda: KafkaSource(SERVERS, topc="t"), "CONFIG_INVALID", "'topic"),
    "no servers": (lambda: KafkaSource(topic="t"), "CONFIG_INVALID", "bootstrap_servers"),
    "servers without a port": (lambda: KafkaSource("localhost", "t"), "CONFIG_INVALID", "host:port"),
    "no topic": (lambda: KafkaSource(SERVERS), "CONFIG_INVALID", "exactly one"),
    "an option of Kafka is mistyped": (
        lambda: KafkaSource(SERVERS, "t", options={"maxOffsetPerTrigger": 5}),
        "CONFIG_INVALID",
        "'maxOffsetsPerTrigger'",
    ),
    "an option of the sink is mistyped": (
        lambda: KafkaSink(SERVERS, "t", options={"batch.sise": 5}),
        "CONFIG_INVALID",
        "'batch.size'",
    ),
    "a sink without a topic": (lambda: KafkaSink(SERVERS), "CONFIG_INVALID", "marker_topic"),
    "a topic with a space": (lambda: KafkaSink(SERVERS, "my topic"), "CONFIG_INVALID", "topic name"),
    "a security protocol that is none": (
        lambda: KafkaSource(SERVERS, "t", options={"security.protocol": "TLS"}),
        "CONFIG_INVALID",
        "SASL_SSL",
    ),
    "Spark's acks": (
        lambda: KafkaSink(SERVERS, "t", options={"kafka.acks": "1"}),
        "CONFIG_INVALID",
        "acknowledged by all replicas",
    ),
    "Kafka's transactional id": (
        lambda: KafkaSink(SERVERS, "t", options={"transactional.id": "x"}),
        "CONFIG_INVALID",
        "leave it out",
    ),
    "Spark's format of files that has no connector": (
        lambda: ckpt.SparkSource("text"),
        "CONFIG_INVALID",
        "as csv, json",
    ),
    "Delta's mergeSchema": (lambda: DeltaSink("/t", mergeSchema=True), "CONFIG_INVALID", "add the column"),
    "a pattern of dates": (
        lambda: FilesSource("/in", "csv", "a string", dateFormat="dd.MM.yyyy"),
        "CONFIG_INVALID",
        "to_timestamp",
    ),
    "files that Spark would skip": (
        lambda: FilesSource("/in", "csv", "a string", ignoreCorruptFiles=True),
        "CONFIG_INVALID",
        "on_error",
    ),
    "a transactional id": (lambda: KafkaSink(SERVERS, "t", transactional_id="x"), "CONFIG_INVALID", "itself"),
    # Delta and files
    "Delta's path": (lambda: DeltaSink(path="/data/t"), "CONFIG_INVALID", "table="),
    "Delta's mode": (lambda: DeltaSink("/data/t", mode="append"), "CONFIG_INVALID", "keys="),
    "a checkpoint for a sink": (lambda: DeltaSink("/t", checkpointLocation="/c"), "CONFIG_INVALID", "store"),
    "a merge without its engine": (lambda: DeltaSink("/t", keys=["id"]), "CONFIG_INVALID", 'engine="spark"'),
    "a rule of a merge without keys": (lambda: DeltaSink("/t", newest_by="at"), "CONFIG_INVALID", "keys="),
    "an engine that is none": (lambda: DeltaSink("/t", engine="rust"), "CONFIG_INVALID", "deltalake"),
    "Delta's startingVersion": (lambda: DeltaSource("/t", startingVersion=3), "CONFIG_INVALID", "start="),
    "Delta's ignoreChanges": (lambda: DeltaSource("/t", ignoreChanges=True), "CONFIG_INVALID", "on_change"),
    "a format that is none": (lambda: FilesSource("/in", "xml", "a long"), "CONFIG_INVALID", "'json'"),
    "no schema": (lambda: FilesSource("/in", "json"), "CONFIG_INVALID", "schema"),
    "an age that is none": (lambda: FilesSource("/in", "json", "a long", maxFileAge="old"), "CONFIG_INVALID", "7 days"),
    "a start that is none": (lambda: FilesSource("/in", "json", "a long", start="now"), "CONFIG_INVALID", "latest"),
    "the former name of a limit": (
        lambda: FilesSource("/in", "json", "a long", files_per_batch=1),
        "CONFIG_INVALID",
        "maxFilesPerTrigger=",
    ),
    # an outbox
    "an outbox without a sink": (lambda: ckpt.Outbox("/o", name="o", sinks={}), "CONFIG_INVALID", "sinks="),
    "an outbox with a bad name": (
        lambda: ckpt.Outbox("/o", name="my outbox", sinks={"s": DeltaSink("/t")}),
        "CONFIG_INVALID",
        "letters",
    ),
    "an argument of an outbox is mistyped": (
        lambda: ckpt.Outbox("/o", name="o", sinks={"s": DeltaSink("/t")}, chekpoint="/c"),
        "CONFIG_INVALID",
        "'checkpoint'",
    ),
    "an outbox with Spark's name of its checkpoint": (
        lambda: ckpt.Outbox("/o", name="o", sinks={"s": DeltaSink("/t")}, checkpointLocation="/c"),
        "CONFIG_INVALID",
        "checkpoint=",
    ),
    "an option of a Spark source as an argument": (
        lambda: ckpt.SparkSource("rate", rowsPerSecond=10),
        "CONFIG_INVALID",
        'SparkSource("rate", {',
    ),
    "a timeout of an outbox in words": (
        lambda: ckpt.Outbox("/o", name="o", sinks={"s": DeltaSink("/t")}, publish_timeout="soon"),
        "CONFIG_INVALID",
        "5m",
    ),
    # operators
    "output mode complete": (lambda: operator(iter, "complete"), "GRAPH_INVALID", "'update'"),
    "an output mode is mistyped": (lambda: operator(iter, "udpate"), "GRAPH_INVALID", "did you mean 'update'"),
    "a timeout is mistyped": (lambda: operator(iter, timeout="EventTime"), "GRAPH_INVALID", "EventTimeTimeout"),
    "complete aggregates": (lambda: aggregate("complete"), "GRAPH_INVALID", "'update'"),
    "a mode of agg is mistyped": (lambda: aggregate("each rows"), "GRAPH_INVALID", "did you mean 'each row'"),
    "a sum of text": (lambda: aggregate(column="k"), "GRAPH_INVALID", "cast"),
    "an aggregate of no column": (lambda: aggregate(column="amount"), "GRAPH_INVALID", "k, v"),
    # the command line's words
    "a condition is mistyped": (lambda: explained("CKPT_EPOCH_DAMAGE"), "CONFIG_INVALID", "CKPT_EPOCH_DAMAGED"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_raises_one_typed_error_with_advice(mistake: str) -> None:
    make, condition, advice = MISTAKES[mistake]

    with pytest.raises(CkptError) as refused:
        make()

    assert refused.value.condition == f"CKPT_{condition}"
    assert advice in f"{refused.value.what} {refused.value.hint}"


def no_yield(key, frames, state):
    state.update((1,))


def returned(key, frames, state):
    return pd.DataFrame({"k": [key[0]], "total": [1]})


def one_value(key, frames, state):
    state.update(1.0)
    yield (key[0], 1)


def lacking(key, frames, state):
    yield pd.DataFrame({"k": [key[0]]})


def renamed(key, frames, state):
    yield pd.DataFrame({"k": [key[0]], "sum": [1]})


def a_number(key, frames, state):
    yield 5


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (no_yield, "yield each output row"),
        (returned, "write `yield` instead of `return`"),
        (one_value, "state.update((total,))"),
        (lacking, "lacks ['total']"),
        (renamed, "lack column 'total'"),
        (a_number, "a tuple, a dict or a DataFrame"),
    ],
)
def test_a_mistake_in_a_keyed_function_names_operator_key_and_advice(
    tmp_path: Path, function: Callable[..., object], advice: str
) -> None:
    bound = operator(function).bind(Binding("totals"))  # type: ignore[attr-defined]
    group = KeyGroupState(bound.schema, cache_of(bound.schema, tmp_path, MemoryStore()), 0)
    rows = with_hash(pa.table({"k": ["a"], "v": [1]}), ["k"])

    with pytest.raises(CkptError) as refused:
        list(bound.process(rows, group, Clock(1000)))

    assert refused.value.condition == "CKPT_OUTPUT_INVALID"
    assert advice in f"{refused.value.what} {refused.value.hint}"
    assert (refused.value.context["operator"], refused.value.context["key"]) == ("totals", "('a',)")
