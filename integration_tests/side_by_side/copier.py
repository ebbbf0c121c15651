"""A small exactly-once system: copies its source in transactions, with offsets in Kafka. Variants die, or repeat records."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer

from benchmarks.systems import Run


def main(run: Run) -> None:
    if run.hook == "dying":
        raise SystemExit("there is no such thing")
    group = run.folder.replace("/", "-")
    consumer = Consumer(
        {
            "bootstrap.servers": run.servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
        }
    )
    producer = Producer({"bootstrap.servers": run.servers, "transactional.id": group})
    producer.init_transactions()
    consumer.subscribe([run.source])
    while True:
        copy_for_a_while(run, consumer, producer)


def copy_for_a_while(run: Run, consumer: Consumer, producer: Producer) -> None:
    producer.begin_transaction()
    until = time.monotonic() + run.interval_ms / 1000
    while time.monotonic() < until:
        time.sleep(0.01)  # so that input remains at the kill
        for message in consumer.consume(200, 0.1):
            for _ in range(2 if run.hook == "repeating" and message.offset() == 100 else 1):
                producer.produce(run.target, message.value(), message.key())
        producer.poll(0)
    consumed = [place for place in consumer.position(consumer.assignment()) if place.offset >= 0]
    producer.send_offsets_to_transaction(consumed, consumer.consumer_group_metadata())
    producer.commit_transaction()


if __name__ == "__main__":
    main(Run.of_command_line())
