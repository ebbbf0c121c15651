"""kafka-python, imported in one place: it has no type information and warns while it is being imported."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from importlib import util
from typing import Any

from spark_ckpt.errors import EnvironmentUnfit

if util.find_spec("kafka") is None:
    raise EnvironmentUnfit("kafka-python is not installed", hint="pip install 'spark-ckpt[kafka]'")

with warnings.catch_warnings():
    # It reads its schema files with a function that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors as kafka_errors
    from kafka.admin import KafkaAdminClient, NewTopic
    from kafka.codec import has_lz4
    from kafka.consumer import KafkaConsumer
    from kafka.net.compat import KafkaNetClient
    from kafka.producer import KafkaProducer
    from kafka.protocol.consumer import IsolationLevel, OffsetFetchRequest, OffsetSpec
    from kafka.protocol.metadata import CoordinatorType
    from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

__all__ = [
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
    "open_admin",
]


def open_admin(settings: Mapping[str, object]) -> KafkaAdminClient:
    """A connected admin client. Its own constructor leaks a thread and sockets when nobody answers.

    Nor does it tell a refused login from a broker that does not answer: it logs in again until its time is
    over.
    """
    failures: list[Exception] = []
    admin = KafkaAdminClient.__new__(KafkaAdminClient)
    try:
        admin.__init__(**settings, kafka_client=partial(_remembering_client, failures))
    except BaseException as error:
        admin._closed = False
        admin.close()
        refused = [one for one in failures if isinstance(one, kafka_errors.SaslAuthenticationFailedError)]
        raise (refused[0] if refused else error) from error
    return admin


def _remembering_client(failures: list[Exception], **settings: object) -> KafkaNetClient:
    """The usual network client, which also keeps why its connections failed."""
    client = KafkaNetClient(**settings)
    connect = client._manager.get_connection

    def get_connection(*arguments: object, **named: object) -> Any:
        connection = connect(*arguments, **named)
        connection.init_future.add_errback(failures.append)
        return connection

    client._manager.get_connection = get_connection
    return client
