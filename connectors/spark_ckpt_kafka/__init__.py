"""Kafka connector of spark_ckpt: a source with exact cursors and an exactly-once sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_ckpt_kafka.declared import CONNECTOR
    from spark_ckpt_kafka.registry import Registry
    from spark_ckpt_kafka.sink import KafkaSink
    from spark_ckpt_kafka.source import KafkaSource
    from spark_ckpt_kafka.values import Avro, JsonSchema, Protobuf

__all__ = ["CONNECTOR", "Avro", "JsonSchema", "KafkaSink", "KafkaSource", "Protobuf", "Registry"]

_HOMES = {
    "CONNECTOR": "spark_ckpt_kafka.declared",
    "KafkaSink": "spark_ckpt_kafka.sink",
    "KafkaSource": "spark_ckpt_kafka.source",
    "Registry": "spark_ckpt_kafka.registry",
    **dict.fromkeys(("Avro", "JsonSchema", "Protobuf"), "spark_ckpt_kafka.values"),
}


def __getattr__(name: str) -> object:
    """Import a public name at first use: a publisher process loads neither the source nor Spark."""
    from importlib import import_module

    if name not in _HOMES:
        from spark_ckpt.errors import NameUnknown

        raise NameUnknown.of(__name__, name, __all__)
    return getattr(import_module(_HOMES[name]), name)
