"""Translates one mapping of Kafka's dotted option names for three clients.

Spark's source is the Java client, and the sink is kafka-python. librdkafka (confluent-kafka) reads topics for a repair and
for the demo. Each spells the same setting differently. Certificates are PEM files, which all three can read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.wording import did_you_mean

REDACTED = "*****"

_SECURITY = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "sasl.kerberos.service.name",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SECRETS = ("password", "jaas", "secret", "token")

Settings = dict[str, str | int | bool]
"""Keyword arguments or properties of a Python client."""


@dataclass(frozen=True)
class Connection:
    """Addresses and login of the cluster. `repr` shows no secret. Raises `ConfigInvalid` for unusable values."""

    servers: str
    security: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[^\s,]+:\d+(,[^\s,]+:\d+)*", self.servers):
            raise ConfigInvalid(
                f"{self.servers!r} is not a list of Kafka servers",
                hint="give host:port, several of them separated by commas",
            )
        _check_security(self.security)

    def for_spark(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source (`kafka.` names of the Java client)."""
        # Java's client takes user and password in its JAAS text only.
        options = {name: value for name, value in self.security.items() if name not in _CREDENTIALS}
        if (jaas := self._jaas()) is not None:
            options["sasl.jaas.config"] = jaas
        for store in ("ssl.truststore", "ssl.keystore"):
            if f"{store}.location" in options:
                # Java expects a JKS store by default.
                options[f"{store}.type"] = "PEM"
        return {"kafka.bootstrap.servers": self.servers} | {f"kafka.{name}": one for name, one in options.items()}

    def for_kafka_python(self) -> Settings:
        """Return the keyword arguments of kafka-python's clients."""
        settings: Settings = {"bootstrap_servers": self.servers}
        settings |= {argument: self.security[name] for name, argument in _KAFKA_PYTHON if name in self.security}
        if self.security.get("ssl.endpoint.identification.algorithm") == "":
            # In Java's client an empty algorithm switches the check of host names off.
            settings["ssl_check_hostname"] = False
        return settings | self._credentials("sasl_plain_username", "sasl_plain_password")

    def for_confluent(self) -> Settings:
        """Return librdkafka's configuration."""
        settings: Settings = {"bootstrap.servers": self.servers}
        settings |= {argument: self.security[name] for name, argument in _LIBRDKAFKA if name in self.security}
        if self.security.get("ssl.endpoint.identification.algorithm") == "":
            settings["ssl.endpoint.identification.algorithm"] = "none"
        return settings | self._credentials("sasl.username", "sasl.password")

    def describe(self) -> dict[str, str]:
        """Return servers and security settings, secrets redacted."""
        return {"servers": self.servers} | redacted(self.security)

    def _credentials(self, user: str, password: str) -> Settings:
        name, secret = self.security.get("sasl.username"), self.security.get("sasl.password")
        jaas = self.security.get("sasl.jaas.config", "")
        name, secret = name or _jaas_value(jaas, "username"), secret or _jaas_value(jaas, "password")
        return {key: value for key, value in ((user, name), (password, secret)) if value is not None}

    def _jaas(self) -> str | None:
        mechanism = self.security.get("sasl.mechanism", "")
        if "sasl.username" not in self.security or mechanism not in _LOGIN_MODULES:
            return None
        name, secret = (_quoted(self.security.get(key, "")) for key in ("sasl.username", "sasl.password"))
        return f"{_LOGIN_MODULES[mechanism]} required username={name} password={secret};"


_CREDENTIALS = ("sasl.username", "sasl.password")
# The Java client's PEM keystore has key and certificates in one file; the other clients take them as two settings.
_KAFKA_PYTHON = (
    ("security.protocol", "security_protocol"),
    ("sasl.mechanism", "sasl_mechanism"),
    ("sasl.kerberos.service.name", "sasl_kerberos_service_name"),
    ("ssl.truststore.location", "ssl_cafile"),
    ("ssl.keystore.location", "ssl_certfile"),
    ("ssl.keystore.location", "ssl_keyfile"),
    ("ssl.key.password", "ssl_password"),
)
_LIBRDKAFKA = (
    ("security.protocol", "security.protocol"),
    ("sasl.mechanism", "sasl.mechanism"),
    ("sasl.kerberos.service.name", "sasl.kerberos.service.name"),
    ("ssl.truststore.location", "ssl.ca.location"),
    ("ssl.keystore.location", "ssl.certificate.location"),
    ("ssl.keystore.location", "ssl.key.location"),
    ("ssl.key.password", "ssl.key.password"),
)


@dataclass(frozen=True)
class Tuning:
    """Settings of a sink's producer. Milliseconds and bytes; Kafka's names with underscores.

    Raises `ConfigInvalid` unless request timeout < delivery timeout < transaction timeout.
    """

    transaction_timeout_ms: int = 300_000
    delivery_timeout_ms: int = 45_000
    request_timeout_ms: int = 15_000
    batch_size: int = 1_000_000
    max_request_size: int = 1_048_576
    compression_type: str = "lz4"

    def __post_init__(self) -> None:
        if self.request_timeout_ms >= self.delivery_timeout_ms:
            raise ConfigInvalid(
                "delivery.timeout.ms must exceed request.timeout.ms",
                hint="raise delivery.timeout.ms, or lower request.timeout.ms",
            )
        if self.delivery_timeout_ms >= self.transaction_timeout_ms:
            raise ConfigInvalid(
                "transaction.timeout.ms must exceed delivery.timeout.ms: records fail before transactions",
                hint="raise transaction.timeout.ms (the brokers' transaction.max.timeout.ms limits it), or lower "
                "delivery.timeout.ms",
            )

    def within(self, max_message_bytes: int | None) -> Tuning:
        """Return the settings with a batch size that a topic accepts at any compression ratio."""
        return self if max_message_bytes is None else replace(self, batch_size=min(self.batch_size, max_message_bytes))


def split_options(options: Mapping[str, object]) -> tuple[dict[str, str], dict[str, str]]:
    """Return (Kafka's security settings, all other options) as text. A leading `kafka.` of dotted names is removed."""
    security: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in options.items():
        # Java's clients read "true", and Python would write "True".
        text = str(value).lower() if isinstance(value, bool) else str(value)
        plain = name.removeprefix("kafka.")
        (security if plain in _SECURITY else others)[plain if "." in plain else name] = text
    return security, others


_OF_TRANSACTIONS = (
    "acks",
    "enable.idempotence",
    "retries",
    "transactional.id",
    "max.in.flight.requests.per.connection",
)


def tuning(options: Mapping[str, str]) -> Tuning:
    """Return a sink's producer settings from dotted names. Raises `ConfigInvalid` for an unknown name or value."""
    known = {name.replace("_", "."): name for name in Tuning.__dataclass_fields__}
    unknown = sorted(set(options) - set(known))
    if unknown and unknown[0].removeprefix("kafka.") in _OF_TRANSACTIONS:
        raise ConfigInvalid(
            f"Kafka sink option {unknown[0]!r} is decided by the sink",
            hint="leave it out: the sink sends in transactions, acknowledged by all replicas, with an idempotent producer",
        )
    if unknown:
        raise ConfigInvalid(
            f"unknown Kafka sink option(s): {', '.join(unknown)}",
            hint=did_you_mean(unknown[0], [*known, *_SECURITY]) or f"known: {', '.join(sorted([*known, *_SECURITY]))}",
        )
    values: dict[str, Any] = {
        known[name]: _compression(text) if name == "compression.type" else _number(name, text)
        for name, text in options.items()
    }
    return Tuning(**values)


def redacted(values: Mapping[str, str]) -> dict[str, str]:
    """Return the same names, with values that may be secret replaced."""
    return {
        name: REDACTED if any(word in name.lower() for word in _SECRETS) else value for name, value in values.items()
    }


def _check_security(security: Mapping[str, str]) -> None:
    protocol = security.get("security.protocol", "PLAINTEXT")
    if protocol not in _PROTOCOLS:
        raise ConfigInvalid(f"unknown security.protocol {protocol!r}", hint=f"one of {', '.join(_PROTOCOLS)}")
    for store in ("ssl.truststore.type", "ssl.keystore.type"):
        if security.get(store, "PEM") != "PEM":
            raise ConfigInvalid(
                f"{store} must be PEM: the Python clients read no other kind",
                hint="convert it: keytool -importkeystore -deststoretype PKCS12, then openssl pkcs12 -nodes",
            )
    if protocol.startswith("SASL"):
        _check_login(security)


def _check_login(security: Mapping[str, str]) -> None:
    mechanism = security.get("sasl.mechanism")
    if mechanism not in (*_LOGIN_MODULES, "GSSAPI"):
        raise ConfigInvalid(
            f"sasl.mechanism {mechanism!r} is not supported",
            hint=f"one of {', '.join([*_LOGIN_MODULES, 'GSSAPI'])}",
        )
    jaas = security.get("sasl.jaas.config", "")
    user = security.get("sasl.username") or _jaas_value(jaas, "username")
    if mechanism != "GSSAPI" and not user:
        raise ConfigInvalid(
            f"{mechanism} needs a user name and a password",
            hint="set sasl.username and sasl.password, or sasl.jaas.config with username= and password=",
        )


def _jaas_value(jaas: str, name: str) -> str | None:
    match = re.search(rf'\b{name}\s*=\s*"((?:[^"\\]|\\.)*)"', jaas)
    return re.sub(r"\\(.)", r"\1", match.group(1)) if match else None


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigInvalid(f"{name} must be a whole number, not {text!r}")
    return int(text)


def _compression(name: str) -> str:
    kinds = ("none", "gzip", "snappy", "lz4", "zstd")
    if name not in kinds:
        raise ConfigInvalid(f"unknown compression.type {name!r}", hint=f"one of {', '.join(kinds)}")
    return name
