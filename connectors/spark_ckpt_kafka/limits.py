"""Cluster settings that decide which records and transactions the brokers accept."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ckpt_kafka.control import KafkaControl
from spark_ckpt_kafka.options import Tuning
from spark_ckpt_kafka.record_rules import Headers, RecordRules, TopicLimits

_NO_BOUND = 2**62
"""Numbers from here on mean "unlimited": Kafka's default for a bound of times is the largest long."""


def topic_limits(control: KafkaControl, topic: str) -> TopicLimits:
    """Return the limits of a topic. Raises `ControlError` if the topic does not exist."""
    partitions = len(control.partitions([topic])[topic])
    settings = control.settings(topic)
    # A topic with LogAppendTime replaces the timestamps, so that its bounds do not apply.
    stamped_by_writer = settings.get("message.timestamp.type", "CreateTime") == "CreateTime"
    return TopicLimits(
        partitions=partitions,
        compacted="compact" in settings.get("cleanup.policy", "").split(","),
        max_message_bytes=_number(settings, "max.message.bytes"),
        before_ms=_number(settings, "message.timestamp.before.max.ms") if stamped_by_writer else None,
        after_ms=_number(settings, "message.timestamp.after.max.ms") if stamped_by_writer else None,
    )


def record_rules(
    topic: str | None, tuning: Tuning, limits: TopicLimits | None = None, stamp: Headers = ()
) -> RecordRules:
    """Return the rules for the rows of a sink. `topic` is None if rows name their topics. `stamp`: added headers."""
    return RecordRules(topic, tuning.max_request_size, tuning.compression_type, limits or TopicLimits(), stamp)


def longest_transaction_ms(control: KafkaControl) -> int | None:
    """Return the largest `transaction.timeout.ms` that the brokers allow, or None if it is unknown."""
    return _number(control.settings(), "transaction.max.timeout.ms")


def _number(settings: Mapping[str, str], name: str) -> int | None:
    text = settings.get(name, "")
    return int(text) if text.isdecimal() and int(text) < _NO_BOUND else None
