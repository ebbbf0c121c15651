"""The cluster's settings that decide which records and transactions it takes."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ckpt_kafka.control import Control
from spark_ckpt_kafka.options import BATCH_ROOM, Tuning
from spark_ckpt_kafka.producer import Plane
from spark_ckpt_kafka.record_rules import RecordRules, TopicLimits

_NO_BOUND = 2**62
"""Kafka's default of a bound of times is the largest number there is."""


def topic_limits(control: Control, topic: str) -> TopicLimits:
    """What the topic takes. Raises `ControlError` if there is no such topic."""
    partitions = len(control.partitions([topic])[topic])
    settings = control.settings(topic)
    stamped_by_writer = settings.get("message.timestamp.type", "CreateTime") == "CreateTime"
    return TopicLimits(
        partitions=partitions,
        compacted="compact" in settings.get("cleanup.policy", "").split(","),
        max_message_bytes=_number(settings, "max.message.bytes"),
        before_ms=_number(settings, "message.timestamp.before.max.ms") if stamped_by_writer else None,
        after_ms=_number(settings, "message.timestamp.after.max.ms") if stamped_by_writer else None,
    )


def record_rules(topic: str | None, plane: Plane, tuning: Tuning, limits: TopicLimits | None = None) -> RecordRules:
    """The rules of a sink's rows."""
    room = tuning.batch_size + BATCH_ROOM if plane == "kafka-python" else 0
    most = max(tuning.max_request_size, room)
    return RecordRules(topic, plane, most, tuning.compression_type, limits or TopicLimits())


def longest_transaction_ms(control: Control) -> int | None:
    """The longest `transaction.timeout.ms` that the brokers allow; None if it is not known."""
    return _number(control.settings(), "transaction.max.timeout.ms")


def _number(settings: Mapping[str, str], name: str) -> int | None:
    text = settings.get(name, "")
    return int(text) if text.isdecimal() and int(text) < _NO_BOUND else None
