"""Declares the Kafka connector to the core: its classes and the jars of Spark's Kafka connector."""

from __future__ import annotations

from importlib import resources

from spark_ckpt.connector import Connector
from spark_ckpt.jars import read_lock

CONNECTOR = Connector(
    "kafka",
    contract=1,
    sources=("KafkaSource",),
    sinks=("KafkaSink",),
    jars=read_lock(resources.files("spark_ckpt_kafka") / "jars.lock.json"),
)
