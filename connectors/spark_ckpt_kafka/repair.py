"""Shows and sets a sink's marker, and counts an epoch's records. For operators.

    python -m spark_ckpt_kafka.repair --servers HOST:PORT --topic TOPIC --group STORE.SINK.LANE show
    ... find 42      count the records whose audit headers name this lane and epoch (needs audit_headers=True)
    ... set 42       declare that epoch 42, and nothing after it, is in the topic

A sink refuses to publish when its marker is lost or foreign, because it would have to guess. `set 42` means: the job
publishes the epoch after 42 next, and does not publish 42 and older ones again. It fences a running publisher.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spark_ckpt.connector_parts.options_file import read_options
from spark_ckpt.errors import CkptError, EnvironmentUnfit, PublishFailed
from spark_ckpt.wording import counted
from spark_ckpt_kafka.control import ControlError, KafkaControl
from spark_ckpt_kafka.marker import TopicMarker
from spark_ckpt_kafka.options import Connection, split_options, tuning
from spark_ckpt_kafka.producer import ProducerFailed, open_producer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = _parser().parse_args(arguments)
    try:
        security, others = split_options(read_options(given.options_file))
        connection = Connection(given.servers, security)
        if given.verb == "show":
            _say(show(connection, given.group, given.topic))
        elif given.verb == "find":
            _say(f"{counted(find(connection, given.group, given.topic, given.epoch), 'record')} of epoch {given.epoch}")
        else:
            declare(connection, given.group, given.topic, given.epoch, given.lanes, others)
            _say(show(connection, given.group, given.topic))
    except CkptError as error:
        return _refused(error)
    except ControlError as error:
        return _refused(PublishFailed(error.what, hint=error.hint))
    return 0


def show(connection: Connection, group: str, topic: str) -> str:
    """Return the marker as text. Raises `ControlError`."""
    with KafkaControl(connection) as control:
        control.partitions([topic])
        marker = control.marker(group, topic)
    return f"{group}: no marker" if marker is None else f"{group}: {marker}"


def find(connection: Connection, group: str, topic: str, epoch: int) -> int:
    """Return the number of committed records that carry the audit headers of the shard and the epoch."""
    wanted = {("ckpt-lane", group.encode()), ("ckpt-epoch", str(epoch).encode())}
    return sum(wanted <= set(headers) for headers in _headers(connection, topic))


def declare(
    connection: Connection, group: str, topic: str, epoch: int, lanes: int, options: dict[str, str] | None = None
) -> None:
    """Write a marker that says: `epoch` is published, later epochs are not. Fences a running publisher of the shard.

    Raises `PublishFailed` if the marker was not written, and `ControlError`.
    """
    with KafkaControl(connection) as control:
        control.partitions([topic])
    # Incarnation 0 fences no driver, and an empty decision fits every manifest.
    marker = TopicMarker(epoch=epoch, previous=0, incarnation=0, rows=0, lanes=lanes, lanes_before=lanes)
    try:
        producer = open_producer(connection, tuning(options or {}), group, lambda: None)
        # The init fences a running publisher and waits for its last transaction, which could otherwise replace the
        # declared marker.
        producer.init()
        producer.begin()
        producer.add_marker(group, topic, epoch, marker.encode())
        producer.commit()
        producer.close()
    except ProducerFailed as error:
        raise PublishFailed(f"the marker was not written: {error.what}", hint=error.hint) from error


def _headers(connection: Connection, topic: str) -> Iterator[list[tuple[str, bytes | None]]]:
    """Yield the headers of every committed record, from the beginning to the last stable offset."""
    try:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
    except ImportError as error:
        hint = "pip install 'spark-ckpt[registry]'"
        raise EnvironmentUnfit("find needs confluent-kafka, which reads every compression", hint=hint) from error
    with KafkaControl(connection) as control:
        left = set(control.partitions([topic])[topic])
    settings: dict[str, Any] = {"group.id": "spark-ckpt-repair", "enable.partition.eof": True, "log_level": 2}
    settings |= {"isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer(connection.for_confluent() | settings)
    try:
        consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in sorted(left)])
        yield from _until_ended(consumer, left)
    except KafkaException as error:
        raise PublishFailed(f"reading {topic} failed: {error}") from error
    finally:
        consumer.close()


def _until_ended(consumer: Any, left: set[int]) -> Iterator[list[tuple[str, bytes | None]]]:
    from confluent_kafka import KafkaError, KafkaException

    while left:
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is None:
                yield message.headers() or []
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise KafkaException(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_ckpt_kafka.repair",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True, help="the sink's marker topic: its topic unless rows name theirs")
    parser.add_argument("--group", required=True, help="as the error names it: STORE.SINK.LANE")
    parser.add_argument("--lanes", type=int, default=1, help="lanes the sink had at that epoch (set)")
    parser.add_argument("--options-file", type=Path, help="JSON object with the sink's options (login, TLS)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("show")
    for verb in ("find", "set"):
        verbs.add_parser(verb).add_argument("epoch", type=int)
    return parser


def _refused(error: CkptError) -> int:
    sys.stderr.write(f"{error}\n")
    return error.exit_code


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
