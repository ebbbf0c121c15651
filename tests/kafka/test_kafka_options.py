"""One mapping of Kafka's names becomes three clients' settings, and no secret is ever printed."""

from __future__ import annotations

import ast
import re
from typing import Any
from unittest.mock import MagicMock

import pytest
from spark_ckpt_kafka.options import Connection, Tuning, split_options, tuning
from spark_ckpt_kafka.sink import KafkaSink, check_transaction
from spark_ckpt_kafka.source import KafkaSource

from checkpoint_protocols.ids import Incarnation
from spark_ckpt.connector import SinkContext
from spark_ckpt.errors import ConfigInvalid, SinkInvalid, SourceInvalid

SCRAM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "job",
    "sasl.password": 'se"cr\\et',
    "ssl.truststore.location": "/etc/ca.pem",
}


def test_scram_and_tls_for_spark_are_a_jaas_line_and_pem_stores() -> None:
    options = Connection("b:9092", SCRAM).for_spark()

    assert options["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="job" password="se\\"cr\\\\et";'
    )
    assert options["kafka.ssl.truststore.type"] == "PEM"
    assert options["kafka.bootstrap.servers"] == "b:9092"
    assert not {name for name in options if "sasl.password" in name}


def test_scram_and_tls_for_the_python_clients() -> None:
    connection = Connection("b:9092", SCRAM)

    assert connection.for_kafka_python() == {
        "bootstrap_servers": "b:9092",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "ssl_cafile": "/etc/ca.pem",
        "sasl_plain_username": "job",
        "sasl_plain_password": 'se"cr\\et',
    }
    assert connection.for_confluent() == {
        "bootstrap.servers": "b:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.ca.location": "/etc/ca.pem",
        "sasl.username": "job",
        "sasl.password": 'se"cr\\et',
    }


def test_a_jaas_line_gives_the_python_clients_their_user_and_password() -> None:
    spark = Connection("b:9092", SCRAM).for_spark()
    user_settings = SCRAM | {"sasl.jaas.config": spark["kafka.sasl.jaas.config"]}
    del user_settings["sasl.username"], user_settings["sasl.password"]

    connection = Connection("b:9092", user_settings)

    assert connection.for_kafka_python()["sasl_plain_password"] == SCRAM["sasl.password"]
    assert connection.for_spark()["kafka.sasl.jaas.config"] == spark["kafka.sasl.jaas.config"]


def test_mutual_tls_uses_one_pem_file_for_certificate_and_key() -> None:
    security = {
        "security.protocol": "SSL",
        "ssl.keystore.location": "/etc/me.pem",
        "ssl.key.password": "k",
        "ssl.endpoint.identification.algorithm": "",
    }
    connection = Connection("b:9092", security)

    python, librdkafka = connection.for_kafka_python(), connection.for_confluent()

    assert (python["ssl_certfile"], python["ssl_keyfile"]) == ("/etc/me.pem", "/etc/me.pem")
    assert python["ssl_check_hostname"] is False
    assert librdkafka["ssl.certificate.location"] == librdkafka["ssl.key.location"] == "/etc/me.pem"
    assert librdkafka["ssl.endpoint.identification.algorithm"] == "none"


@pytest.mark.parametrize("secret", ["sasl.password", "sasl.jaas.config", "ssl.key.password"])
def test_no_secret_is_printed(secret: str) -> None:
    value = 'x username="u" password="hunter2";' if "jaas" in secret else "hunter2"
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", secret: value}
    sink = KafkaSink("b:9092", "t", options=options)
    source = KafkaSource("b:9092", "t", options=options)

    settings = sink.lane_settings(SinkContext("j", "out", "store", Incarnation(1)))
    shown = [repr(sink), str(sink.describe()), repr(source), str(source.describe()), repr(settings)]

    assert not [text for text in shown if "hunter2" in text]
    assert "*****" in str(sink.describe())


@pytest.mark.parametrize(
    "security",
    [
        {"security.protocol": "TLS"},
        {"security.protocol": "SASL_SSL"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
        {"security.protocol": "SSL", "ssl.truststore.type": "JKS"},
    ],
)
def test_settings_that_not_all_clients_understand_are_refused(security: dict[str, str]) -> None:
    with pytest.raises(ConfigInvalid):
        Connection("b:9092", security)


@pytest.mark.parametrize("servers", ["", "broker", "b:9092,", "b:9092 c:9092", "http://b:9092/x"])
def test_servers_are_host_and_port(servers: str) -> None:
    with pytest.raises(ConfigInvalid, match="list of Kafka servers"):
        Connection(servers)


def test_dotted_names_lose_their_prefix_and_booleans_become_text() -> None:
    security, others = split_options(
        {"kafka.security.protocol": "SSL", "kafka.max.poll.records": 5, "includeHeaders": True}
    )

    assert security == {"security.protocol": "SSL"}
    assert others == {"max.poll.records": "5", "includeHeaders": "true"}


@pytest.mark.parametrize(("own", "waits_ms"), [({}, "1"), ({"fetch.max.wait.ms": 250}, "250")])
def test_a_fetch_at_a_topics_end_does_not_wait_unless_configured(own: dict[str, object], waits_ms: str) -> None:
    spark = MagicMock()
    with pytest.raises(SourceInvalid):  # no broker answers after the reader's options are set
        KafkaSource("localhost:1", "t", options=own).check(spark)

    reader = spark.readStream.format.return_value
    assert reader.options.call_args.kwargs["kafka.fetch.max.wait.ms"] == waits_ms


def test_producer_options_become_numbers() -> None:
    options = {"batch.size": "5", "compression.type": "zstd", "transaction.timeout.ms": "600000"}

    assert tuning(options) == Tuning(batch_size=5, compression_type="zstd", transaction_timeout_ms=600_000)


@pytest.mark.parametrize(
    "options",
    [
        {"batch": "5"},
        {"batch.size": "soon"},
        {"compression.type": "brotli"},
        {"transaction.timeout.ms": "1000"},
        {"request.timeout.ms": "60000"},
    ],
)
def test_producer_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid):
        KafkaSink("b:9092", "t", options=options)


@pytest.mark.parametrize("longest_ms", [1_000, 45_000, 45_001, 60_000])
def test_the_options_that_the_brokers_limit_advises_are_accepted(longest_ms: int) -> None:
    with pytest.raises(SinkInvalid) as refused:
        check_transaction(Tuning(), longest_ms)

    advised = re.search(r"options=(\{.*?\})", refused.value.hint)
    assert advised is not None
    security, others = split_options(ast.literal_eval(advised[1]))
    assert not security
    check_transaction(tuning(others), longest_ms)


@pytest.mark.parametrize(
    "options",
    [
        {"maxOffsetsPerTrigger": 0},
        {"maxOffsetsPerTrigger": -5},
        {"minOffsetsPerTrigger": "1e3"},
        {"minPartitions": "x"},
        {"isolation.level": "READ_COMMITTED"},
    ],
)
def test_reader_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid, match=next(iter(options))):
        KafkaSource("b:1", "t", options=options)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"topic": "a", "topics": ["b"]},
        {"topic": ["a", "b"]},
        {"topics": "ab"},
        {"topic": "a", "pattern": "b"},
        {"pattern": "("},
        {"topic": "a", "options": {"subscribe": "b"}},
        {"topic": "a", "options": {"kafka.bootstrap.servers": "b:9092"}},
        {"topic": "a", "options": {"maxOffsets": 1}},
    ],
)
def test_source_arguments_that_contradict_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid):
        KafkaSource("b:9092", **arguments)


@pytest.mark.parametrize("arguments", [{"topic": None}, {"topic": "a b"}, {"topic": "a", "lanes": 0}])
def test_sink_arguments_that_cannot_work_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid):
        KafkaSink("b:9092", **arguments)


@pytest.mark.parametrize("pattern", ["(", "[a-z&&[^b]]+", "(?P<name>a).*"])
def test_a_pattern_that_java_reads_in_another_way_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigInvalid):
        KafkaSource("b:9092", pattern=pattern)
