"""Kafka to Kafka to Delta: a query with state and the reader of its output are rewound to before a bug together.

Records in Kafka cannot be removed. The plan lists the records of undone batches, the fixed reader skips them, and its table is that
of queries that never had the bug.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest
from confluent_kafka import Producer
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from spark_ckpt_kafka.control import KafkaControl
from spark_ckpt_kafka.options import Connection

from integration_tests.broker import Broker
from integration_tests.spark import connected_session
from spark_ckpt.spark_internals.jvm import jvm_of
from spark_rewind.applying import ApplySettings, apply
from spark_rewind.cli.rewind import BrokerTopics
from spark_rewind.declared import Declared
from spark_rewind.plan import RewindPlan
from spark_rewind.planning import RewindRequest, plan_rewind

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

KEYS, PARTITIONS, GOOD, BAD = 5, 2, 3, 2
SETTINGS = ApplySettings(lambda: None, 1_700_000_000_000, "spark-ckpt/test")
OUTPUT = "k string, total long"
FIRST_S, SECOND_MS = 1_700_000_000, 1000
CLOSED = 1_000_000
STATE = "spark.sql.streaming.stateStore"


def windowed(rows: DataFrame) -> DataFrame:
    """A running sum per key in one window, by Spark's own operator."""
    timed = rows.withColumn("at", F.timestamp_seconds(F.lit(FIRST_S)))
    return timed.groupBy(F.window("at", "1 day"), "k").agg(F.sum("v").alias("total")).select("k", "total")


def add_up(key, frames, state):
    total = (state.get[0] if state.exists else 0) + sum(int(frame["v"].sum()) for frame in frames)
    state.update((total,))
    yield pd.DataFrame({"k": [key[0]], "total": [total]})


def per_key(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").applyInPandasWithState(add_up, OUTPUT, "total long", "update", "NoTimeout")


class AddUp(StatefulProcessor):
    """A running sum in a value state; the values of each second in a map, until a timer closes the second."""

    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "total long")
        self.open = handle.getMapState("open", "second_ms long", "v long")

    def handleInputRows(self, key, rows, timerValues):
        total = self.total.get()[0] if self.total.exists() else 0
        for frame in rows:
            for v, second in zip(frame["v"], frame["second"], strict=True):
                total += int(v)
                self.open.updateValue((int(second) * SECOND_MS,), (int(v),))
                self.handle.registerTimer(int(second) * SECOND_MS)
        self.total.update((total,))
        yield pd.DataFrame({"k": [key[0]], "total": [total]})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        second = (expiredTimerInfo.getExpiryTimeInMs(),)
        (v,) = self.open.getValue(second)
        self.open.removeKey(second)
        yield pd.DataFrame({"k": [key[0]], "total": [CLOSED + v]})

    def close(self):
        pass


def with_timers(rows: DataFrame) -> DataFrame:
    """Each number is one second later than the previous one, and closes the previous second."""
    second = F.lit(FIRST_S) + (F.abs("v") / 10).cast("long")
    timed = rows.withColumn("second", second).withColumn("at", F.timestamp_seconds("second"))
    by_key = timed.withWatermark("at", "0 seconds").groupBy("k")
    return by_key.transformWithStateInPandas(AddUp(), OUTPUT, "Update", "EventTime")


@dataclass(frozen=True)
class Kind:
    """A state between two topics. `closes`: it also emits the value of every number except the newest."""

    compute: Callable[[DataFrame], DataFrame]
    conf: Mapping[str, str] = field(default_factory=dict)
    closes: bool = False


WITH_TIMERS = {
    f"{STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{STATE}.checkpointFormatVersion": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # one batch for each number, and no other
}
KINDS = {
    "a window's aggregate": Kind(windowed),
    "applyInPandasWithState": Kind(per_key),
    "transformWithStateInPandas": Kind(with_timers, WITH_TIMERS, closes=True),
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session({"spark.databricks.delta.snapshotPartitions": "1"})


@dataclass
class House:
    """`totals` reads the topic `clicks`, a batch for each number sent to all keys, and writes `sums`; `shown` reads `sums` into a
    table."""

    root: Path
    spark: SparkSession
    servers: str
    name: str
    kind: Kind
    sign: int = 1
    left_out: str = "false"

    def topic(self, name: str) -> str:
        return f"{name}-{self.name}"

    def send(self, number: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for key in range(KEYS):
            producer.produce(self.topic("clicks"), key=f"k{key}", value=str(number * 10 + key), partition=0)
        assert producer.flush(30) == 0

    def read(self, topic: str, **options: object) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        return reader.options(subscribe=self.topic(topic), startingOffsets="earliest", **options).load()

    def totals(self) -> None:
        """Run batches with one record per key."""
        texts = self.read("clicks", maxOffsetsPerTrigger=KEYS).select(
            F.col("key").cast("string").alias("k"), (F.col("value").cast("string").cast("long") * self.sign).alias("v")
        )
        sums = self.kind.compute(texts).select(F.col("k").alias("key"), F.col("total").cast("string").alias("value"))
        writer = sums.writeStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        with self.settings():
            self._run(writer.outputMode("update").option("topic", self.topic("sums")), "totals")

    @contextmanager
    def settings(self) -> Iterator[None]:
        for key, value in self.kind.conf.items():
            self.spark.conf.set(key, value)
        try:
            yield
        finally:
            for key in self.kind.conf:
                self.spark.conf.unset(key)

    def shown(self) -> None:
        rows = (
            self.read("sums")
            .where(f"NOT ({self.left_out})")
            .selectExpr("CAST(key AS string) AS k", "CAST(CAST(value AS string) AS long) AS total")
        )
        self._run(rows.writeStream.format("delta").option("path", str(self.root / "table")), "shown")

    def _run(self, writer, name: str) -> None:
        query = writer.option("checkpointLocation", str(self.root / name)).trigger(availableNow=True).start()
        query.awaitTermination()

    def ends(self) -> list[int]:
        with KafkaControl(Connection(self.servers, {})) as control:
            ends = control.ends({self.topic("sums"): range(PARTITIONS)})
            return [ends[self.topic("sums"), partition] for partition in range(PARTITIONS)]

    def table(self) -> list[tuple[str, int]]:
        rows = self.spark.read.format("delta").load(str(self.root / "table")).collect()
        return sorted((row.k, row.total) for row in rows)

    def planned(self) -> RewindPlan:
        """Plan after the application's end: its JVM still runs here, so unload the state."""
        jvm_of(self.spark).org.apache.spark.sql.execution.streaming.state.StateStore.stop()
        declared = Declared.model_validate({"topics": [{"topic": self.topic("sums"), "written_by": ["totals"]}]})
        folders, tables = [str(self.root / name) for name in ("totals", "shown")], [str(self.root / "table")]
        asked = BrokerTopics(self.servers, {})
        try:
            return plan_rewind(RewindRequest(folders, f"totals@{GOOD - 1}", tables, declared, asked), 0)
        finally:
            asked.close()


def wanted(numbers: int, kind: Kind) -> list[tuple[str, int]]:
    """For every key the sum after each number, and each closed number."""
    each, keys = range(numbers), range(KEYS)
    sums = [(f"k{key}", sum(n * 10 + key for n in range(last + 1))) for key in keys for last in each]
    closed = [(f"k{key}", CLOSED + n * 10 + key) for key in keys for n in each[:-1] if kind.closes]
    return sorted(sums + closed)


# in the gate: tests/rewind/test_line_is_the_greatest.py, and the outbox in test_an_outbox_is_rewound.py
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_table_is_that_of_queries_that_never_had_the_bug(
    broker: Broker, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    house = House(tmp_path, spark, broker.servers, str(list(KINDS).index(kind)), KINDS[kind])
    with KafkaControl(Connection(broker.servers, {})) as control:
        control.create_topic(house.topic("clicks"), 1)
        control.create_topic(house.topic("sums"), PARTITIONS)
    for number in range(GOOD):
        house.send(number)
        house.totals()
        house.shown()
    good = house.ends()
    house.sign = -1
    for number in range(GOOD, GOOD + BAD):
        house.send(number)
        house.totals()
    house.shown()
    assert house.table() != wanted(GOOD + BAD, house.kind), "the bug is visible"

    plan = house.planned()
    bounds = {each.partition: (each.first, each.last) for each in plan.public}
    assert bounds == {at: (good[at], end - 1) for at, end in enumerate(house.ends()) if end > good[at]}
    apply(plan, SETTINGS)

    house.sign = 1
    house.left_out = " OR ".join(f"partition = {at} AND offset BETWEEN {a} AND {b}" for at, (a, b) in bounds.items())
    house.send(GOOD + BAD)
    house.totals()
    house.shown()
    assert house.table() == wanted(GOOD + BAD + 1, house.kind)
