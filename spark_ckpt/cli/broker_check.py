"""The doctor's checks of a Kafka cluster: it answers, and it lets this user open a transaction."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator, Mapping
from importlib import util
from pathlib import Path

from spark_ckpt.cli.checks import Finding
from spark_ckpt.errors import CkptError, ConfigInvalid

_CONNECT_S = 5.0
_HINT_TRANSACTIONS = (
    "the cluster needs a transaction coordinator (on one broker: transaction.state.log.replication.factor=1 and "
    "transaction.state.log.min.isr=1), and this user Write on the transactional id"
)


def read_properties(path: Path | None) -> dict[str, str]:
    """Return the settings of a file of NAME=VALUE lines, like --command-config of Kafka's tools. Raises
    `ConfigInvalid`.
    """
    if path is None:
        return {}
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path} cannot be read: {type(error).__name__}") from error
    written = [line for line in lines if line and not line.startswith(("#", "!"))]
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in written)}


def broker_findings(servers: str, options: Mapping[str, str]) -> Iterator[Finding]:
    """Check reachability and transactions. Opens one transaction under its own name and aborts it."""
    if util.find_spec("spark_ckpt_kafka") is None or util.find_spec("kafka") is None:
        yield Finding("kafka", "fail", "the Kafka connector is not installed", "pip install 'spark-ckpt[kafka]'")
        return
    try:
        yield from _asked(servers, options)
    except CkptError as error:
        yield Finding("kafka", "fail", error.what, error.hint)


def _silent(servers: str) -> str | None:
    """Return the reason if no address answers, else None."""
    failures = []
    for server in servers.split(","):
        host, _, port = server.rpartition(":")  # from the right: an IPv6 address has colons
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
                return None
        # The last two: a port above 65535, and a name that no host can have.
        except (OSError, OverflowError, UnicodeError) as error:
            failures.append(f"{server}: {getattr(error, 'strerror', None) or error}")
    return "; ".join(failures)


def _asked(servers: str, options: Mapping[str, str]) -> Iterator[Finding]:
    from spark_ckpt_kafka.control import ControlError, KafkaControl
    from spark_ckpt_kafka.options import Connection, split_options, tuning
    from spark_ckpt_kafka.producer import ProducerFailed, open_producer

    security, others = split_options(options)
    connection = Connection(servers, security)
    # Before Kafka's clients, which would try again for long.
    if (why := _silent(servers)) is not None:
        yield Finding("kafka", "fail", why, "check the address, and that the broker runs and listens there")
        return
    try:
        with KafkaControl(connection) as control:
            count = len(control.topics())
    except ControlError as error:
        yield Finding("kafka", "fail", error.what, error.hint)
        return
    yield Finding("kafka", "ok", f"{servers} answers, {count} topics")
    # A transactional id of its own: with a fixed one two doctors at once would fence each other.
    name = f"spark-ckpt-doctor-{uuid.uuid4().hex}"
    producer = open_producer(connection, tuning(others), name, lambda: None)
    try:
        producer.init()
        producer.begin()
        producer.abort()
    except ProducerFailed as error:
        yield Finding("kafka transactions", "fail", error.what, error.hint or _HINT_TRANSACTIONS)
    else:
        yield Finding("kafka transactions", "ok", "opened and aborted one")
    finally:
        producer.close()
