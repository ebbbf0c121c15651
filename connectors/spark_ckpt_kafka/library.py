"""The only import of kafka-python: it has no type information and warns during its import."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import util

from spark_ckpt.errors import EnvironmentUnfit

for _name in ("kafka", "crc32c", "lz4"):
    if util.find_spec(_name) is None:
        raise EnvironmentUnfit(f"the package of {_name!r} is not installed", hint="pip install 'spark-ckpt[kafka]'")

with warnings.catch_warnings():
    # kafka-python reads its schema files with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors as kafka_errors
    from crc32c import crc32c
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
    from kafka.codec import lz4_encode
    from kafka.consumer import KafkaConsumer
    from kafka.protocol.consumer import IsolationLevel, OffsetFetchRequest, OffsetSpec
    from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest, MetadataRequest
    from kafka.protocol.producer import (
        AddOffsetsToTxnRequest,
        AddPartitionsToTxnRequest,
        EndTxnRequest,
        InitProducerIdRequest,
        ProduceRequest,
        TxnOffsetCommitRequest,
    )
    from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

    from spark_ckpt_kafka.network import LOGIN_REFUSED, network_client, open_connections

__all__ = [
    "LOGIN_REFUSED",
    "AddOffsetsToTxnRequest",
    "AddPartitionsToTxnRequest",
    "ConfigResource",
    "ConfigResourceType",
    "ConsumerGroupMetadata",
    "CoordinatorType",
    "EndTxnRequest",
    "FindCoordinatorRequest",
    "InitProducerIdRequest",
    "IsolationLevel",
    "KafkaAdminClient",
    "KafkaConsumer",
    "MetadataRequest",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetFetchRequest",
    "OffsetSpec",
    "ProduceRequest",
    "TopicPartition",
    "TxnOffsetCommitRequest",
    "crc32c",
    "kafka_errors",
    "lz4_encode",
    "network_client",
    "open_admin",
    "open_connections",
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
