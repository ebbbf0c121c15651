"""The demo's input and output in Kafka: topics under a unique name, deleted at the end."""

from __future__ import annotations

import contextlib
import time
import uuid
from importlib import util

import pandas as pd

from spark_ckpt.errors import EnvironmentUnfit, SourceInvalid
from spark_ckpt_demo.places import Told, figures_of, records

PARTITIONS = 4
_TOLD_EVERY = 20_000
_WAIT_S = 60.0


class KafkaTopics:
    """One topic of flights, keyed by aircraft; one topic per output, read with `isolation.level=read_committed`."""

    kind = "a Kafka topic to a Kafka topic"

    def __init__(self, servers: str) -> None:
        if util.find_spec("spark_ckpt_kafka") is None or util.find_spec("confluent_kafka") is None:
            raise EnvironmentUnfit("the demo needs the Kafka connector", hint="pip install 'spark-ckpt[demo]'")
        from spark_ckpt_kafka.options import Connection

        self._servers = servers
        self._connection = Connection(servers)
        self._prefix = f"spark-ckpt-demo-{uuid.uuid4().hex[:8]}"
        self._created: list[str] = []

    def fill(self, flights: pd.DataFrame, told: Told) -> None:
        """Create the topics and send every flight, in order. Flights of one aircraft share a partition."""
        for name in ("flights", "figures", "figures-again"):
            self.create(self._topic(name))
        self._send(self._topic("flights"), flights, told)

    def arguments(self, output: str) -> list[str]:
        """Return the topics as arguments."""
        topics = ["--input", self._topic("flights"), "--table", self._topic(output)]
        return ["--kafka", self._servers, *topics, "--sink", output]

    def read(self, output: str) -> pd.DataFrame:
        """Return every committed record up to the current end of the topic."""
        return figures_of(self._values(self._topic(output)))

    def remove(self) -> None:
        """Delete the topics that this demo created."""
        from spark_ckpt_kafka.library import kafka_errors, open_admin

        if not self._created:
            return
        with contextlib.suppress(kafka_errors.KafkaError, OSError):
            admin = open_admin(self._connection.for_kafka_python())
            try:
                admin.delete_topics(self._created)
            finally:
                admin.close()

    def _topic(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def create(self, topic: str) -> None:
        """Create a topic that `remove` deletes. Raises `SourceInvalid`."""
        from spark_ckpt_kafka.control import ControlError, KafkaControl

        try:
            with KafkaControl(self._connection) as control:
                control.create_topic(topic, PARTITIONS)
        except ControlError as error:
            raise SourceInvalid(error.what, hint=error.hint, servers=self._servers) from error
        self._created.append(topic)

    def _send(self, topic: str, flights: pd.DataFrame, told: Told) -> None:
        from confluent_kafka import Producer

        failed: list[str] = []
        # retries must neither repeat nor reorder: each flight of an aircraft is expected once and in order
        settings = {"enable.idempotence": True, "linger.ms": 20, "compression.type": "lz4"}
        producer = Producer({**self._connection.for_confluent(), **settings})

        def delivered(error: object, message: object) -> None:
            if error is not None:
                failed.append(str(error))

        for done, (key, value) in enumerate(records(flights), start=1):
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=delivered)
                    break
                except BufferError:  # the local queue is full: let it drain
                    producer.poll(0.5)
            if done % _TOLD_EVERY == 0:
                # serves the delivery reports, or they would fill the local queue
                producer.poll(0)
                told(done)
        if producer.flush(_WAIT_S) or failed:
            why = failed[0] if failed else f"not delivered within {_WAIT_S:.0f} s"
            raise SourceInvalid(f"the flights could not be sent: {why}", hint="spark-ckpt doctor --kafka SERVERS")
        told(len(flights))

    def _values(self, topic: str) -> list[bytes]:
        from spark_ckpt_kafka.control import ControlError, KafkaControl

        try:
            with KafkaControl(self._connection) as control:
                partitions = control.partitions([topic])[topic]
        except ControlError as error:
            raise SourceInvalid(error.what, hint=error.hint, servers=self._servers) from error
        return [value for partition in partitions for value in self._partition(topic, partition)]

    def _partition(self, topic: str, partition: int) -> list[bytes]:
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        # the client wants a group, although `assign` joins none
        settings = {"group.id": f"{self._prefix}-reader", "isolation.level": "read_committed"}
        # the client reports the end of a partition as an event; without it an empty partition is read until the
        # deadline
        options = {"enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer({**self._connection.for_confluent(), **settings, **options})
        values: list[bytes] = []
        deadline_s = time.monotonic() + _WAIT_S
        try:
            consumer.assign([TopicPartition(topic, partition, 0)])
            while time.monotonic() < deadline_s:
                for message in consumer.consume(5000, timeout=1.0):
                    error = message.error()
                    if error is None:
                        values.append(message.value() or b"")
                    elif error.code() == KafkaError._PARTITION_EOF:
                        return values
        finally:
            consumer.close()
        raise SourceInvalid(
            f"partition {partition} of {topic} could not be read to its end within {_WAIT_S:.0f} s",
            hint="spark-ckpt doctor --kafka SERVERS",
        )
