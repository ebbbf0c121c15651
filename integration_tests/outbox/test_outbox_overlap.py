"""An outbox that publishes a batch while Spark runs the next one."""

from __future__ import annotations

from threading import Event

import pytest
from pyspark.sql import DataFrame, SparkSession
from spark_ckpt_delta import DeltaSink

from integration_tests.outbox.outbox_query import FILES, PER_FILE, Place, expected, run, windows
from integration_tests.survival.process import wait_until
from spark_ckpt.connector import EpochOutput, Publisher, PublishReceipt, SinkContext
from spark_ckpt.errors import SinkInvalid

pytestmark = pytest.mark.spark


class GatedSink(DeltaSink):
    """Publishes nothing until the gate opens, and then fails at one epoch: 0 for none."""

    def __init__(self, table: str, gate: Event, fails_at: int = 0) -> None:
        super().__init__(table)
        self._gate, self._fails_at = gate, fails_at

    def publisher(self, spark: SparkSession, context: SinkContext) -> Publisher:
        return _Gated(super().publisher(spark, context), self._gate, self._fails_at)


class _Gated:
    def __init__(self, real: Publisher, gate: Event, fails_at: int) -> None:
        self._real, self._gate, self._fails_at = real, gate, fails_at

    def publish(self, output: EpochOutput) -> PublishReceipt:
        assert self._gate.wait(300)
        if output.epoch == self._fails_at:
            raise SinkInvalid("planted")
        return self._real.publish(output)

    def close(self) -> None:
        self._real.close()


def test_spark_commits_a_batch_while_its_epoch_is_being_published(spark: SparkSession, place: Place) -> None:
    gate = Event()
    outbox = place.outbox({"gold": GatedSink(place.table("gold"), gate)}, overlap=True)
    query = outbox.start(windows(spark, place.inbox).writeStream.trigger(availableNow=True))
    wait_until((place.checkpoint / "commits" / "0").exists, "the commit of batch 0")
    assert not place.rows("gold")
    gate.set()
    assert query.awaitTermination(300)
    outbox.close()
    assert place.rows("gold") == expected(FILES)


def lines(spark: SparkSession, place: Place) -> DataFrame:
    """Rows, unchanged: without a watermark, Spark runs no batch without input."""
    reader = spark.readStream.schema("k string, ts long, v long").option("maxFilesPerTrigger", 1)
    return reader.json(str(place.inbox)).selectExpr("ts AS w", "k", "v AS n", "0L AS s")


@pytest.mark.long  # in the gate: tests/simulator/test_outbox_world.py
def test_a_failed_last_publish_is_raised_and_the_next_start_makes_up_for_it(spark: SparkSession, place: Place) -> None:
    gate, newest = Event(), len(FILES)
    gate.set()
    outbox = place.outbox({"gold": GatedSink(place.table("gold"), gate, fails_at=newest)}, overlap=True)
    query = outbox.start(lines(spark, place).writeStream.trigger(availableNow=True))
    assert query.awaitTermination(300)
    with pytest.raises(SinkInvalid):
        outbox.close()
    assert isinstance(outbox.exception(), SinkInvalid)
    assert place.rows("gold").total() == (newest - 1) * PER_FILE
    # Spark has committed the batch, and has no input for another one: it does not call the function.
    committed = sorted(path.name for path in (place.checkpoint / "commits").iterdir())
    assert run(place.outbox({"gold": DeltaSink(place.table("gold"))}), lines(spark, place)) is None
    assert sorted(path.name for path in (place.checkpoint / "commits").iterdir()) == committed
    assert place.rows("gold").total() == newest * PER_FILE
