"""The only import of kafka-python: it has no type information and warns during its import."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import util

from spark_ckpt.errors import EnvironmentUnfit

if util.find_spec("kafka") is None:
    raise EnvironmentUnfit("kafka-python is not installed", hint="pip install 'spark-ckpt[kafka]'")

with warnings.catch_warnings():
    # kafka-python reads its schema files with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors as kafka_errors
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
    from kafka.codec import has_lz4
    from kafka.consumer import KafkaConsumer
    from kafka.producer import KafkaProducer
    from kafka.protocol.consumer import IsolationLevel, OffsetFetchRequest, OffsetSpec
    from kafka.protocol.metadata import CoordinatorType
    from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

    from spark_ckpt_kafka.network import LOGIN_REFUSED, network_client

__all__ = [
    "LOGIN_REFUSED",
    "ConfigResource",
    "ConfigResourceType",
    "ConsumerGroupMetadata",
    "CoordinatorType",
    "IsolationLevel",
    "KafkaAdminClient",
    "KafkaConsumer",
    "KafkaProducer",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetFetchRequest",
    "OffsetSpec",
    "TopicPartition",
    "has_lz4",
    "kafka_errors",
    "network_client",
    "open_admin",
]


def open_admin(settings: Mapping[str, object]) -> KafkaAdminClient:
    """Return a connected admin client. The client's own constructor leaks a thread and sockets if no broker answers."""
    admin = KafkaAdminClient.__new__(KafkaAdminClient)
    try:
        admin.__init__(**settings, kafka_client=network_client)
    except BaseException:
        admin._closed = False
        admin.close()
        raise
    return admin
