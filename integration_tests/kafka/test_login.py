"""One mapping of options logs all three clients in at a broker that asks for a password."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka_kit import Staged, close_all, output
from pyspark.sql import SparkSession
from spark_ckpt_kafka import KafkaSink, KafkaSource
from spark_ckpt_kafka.control import KafkaControl
from spark_ckpt_kafka.options import Connection

from checkpoint_protocols.ids import Incarnation
from integration_tests.broker import Broker, running_broker
from integration_tests.spark import connected_session
from spark_ckpt.connector import SinkContext
from spark_ckpt.errors import SinkInvalid

# It needs its own broker. In the gate: tests/kafka/test_kafka_options.py for the options of each client, test_refused_login.py
pytestmark = pytest.mark.long
USER = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "job",
    "sasl.password": 'pass"word',
}
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PROPERTIES = {
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        f'{_MODULE} username="admin" password="admin" user_admin="admin" user_job="pass\\\\"word";'
    ),
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    login = Connection("any:1", USER).for_kafka_python()
    del login["bootstrap_servers"]
    with running_broker(tmp_path_factory.mktemp("secure"), PROPERTIES, login) as broker:
        with KafkaControl(Connection(broker.servers, USER)) as control:
            control.create_topic("t", 3)
        yield broker
        close_all()


def test_a_sink_publishes_after_logging_in(secure: Broker, staged: Callable[..., Staged]) -> None:
    sink = KafkaSink(secure.servers, "t", options=USER)  # type: ignore[arg-type]
    publisher = sink.publisher(None, SinkContext("job", "out", "store", Incarnation(1)))  # type: ignore[arg-type]
    try:
        receipt = publisher.publish(output(1, staged(1)))
    finally:
        publisher.close()

    assert receipt.rows == 600
    with KafkaControl(Connection(secure.servers, USER)) as control:
        marker = control.marker("store.out.0", "t")
    assert marker is not None
    assert marker.epoch == 1


def test_a_wrong_password_is_reported_within_seconds_and_not_shown(secure: Broker) -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    sink = KafkaSink(secure.servers, "t", options=USER | {"sasl.password": "not-it-at-all"})

    with pytest.raises(SinkInvalid) as refused:
        sink.check(None, StructType([StructField("value", StringType())]))  # type: ignore[arg-type]

    assert "sasl" in str(refused.value).lower()
    assert "not-it-at-all" not in str(refused.value)


@pytest.mark.spark
def test_spark_reads_after_logging_in(
    spark: SparkSession, secure: Broker, staged: Callable[..., Staged], tmp_path: Path
) -> None:
    """The same options in the Java client: a JAAS line made from user and password."""
    sink = KafkaSink(secure.servers, "t", options=USER)
    publisher = sink.publisher(None, SinkContext("job", "out", "store-spark", Incarnation(1)))  # type: ignore[arg-type]
    publisher.publish(output(1, staged(1)))
    publisher.close()
    source = KafkaSource(secure.servers, "t", options=USER)
    found: list[int] = []
    rows = source.read(spark, source.start(spark)).writeStream.option("checkpointLocation", str(tmp_path / "q"))

    query = rows.foreachBatch(lambda batch, _: found.append(batch.count())).trigger(availableNow=True).start()

    assert query.awaitTermination(60)
    assert sum(found) >= 600
