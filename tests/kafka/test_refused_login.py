"""A broker's refusal of a login reaches the user, for any other event of the connection at that moment."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from spark_ckpt_kafka.control import ControlError, KafkaControl
from spark_ckpt_kafka.library import LOGIN_REFUSED, open_connections
from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.producer import ProducerFailed, open_producer

LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "job",
    "sasl.password": "not-it-at-all",
}
API_VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36
UNSUPPORTED_VERSION, AUTHENTICATION_FAILED = 35, 58


class RefusingBroker(threading.Thread):
    """Speaks as much of Kafka's protocol as a login takes, and refuses it. Its refusal and the end of the connection leave in one
    packet, so that no client can read the one before the other has arrived."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.servers = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.logins = 0

    def run(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client:
                self._serve(client)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self, client: socket.socket) -> None:
        while len(head := client.recv(4, socket.MSG_WAITALL)) == 4:
            request = client.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
            kind, version, correlation = struct.unpack(">hhi", request[:8])
            if kind == AUTHENTICATE:
                self.logins += 1
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            body = struct.pack(">i", correlation) + answer(kind, version)
            client.sendall(struct.pack(">i", len(body)) + body)
            if kind == AUTHENTICATE:
                return


def answer(kind: int, version: int) -> bytes:
    if kind == API_VERSIONS:
        known = [(API_VERSIONS, 0, 0), (HANDSHAKE, 1, 1), (AUTHENTICATE, 0, 0), (3, 0, 1)]
        error = UNSUPPORTED_VERSION if version else 0
        return struct.pack(">hi", error, len(known)) + b"".join(struct.pack(">hhh", *each) for each in known)
    if kind == HANDSHAKE:
        return struct.pack(">hi", 0, 1) + text("PLAIN")
    return struct.pack(">h", AUTHENTICATION_FAILED) + text("Invalid username or password") + struct.pack(">i", 0)


def text(words: str) -> bytes:
    return struct.pack(">h", len(words)) + words.encode()


@pytest.fixture
def broker() -> Iterator[RefusingBroker]:
    one = RefusingBroker()
    one.start()
    yield one
    one.close()


def test_a_refusal_is_raised_although_the_broker_closes_the_connection_with_it(broker: RefusingBroker) -> None:
    with (
        KafkaControl(Connection(broker.servers, LOGIN)) as control,
        pytest.raises(ControlError, match="login refused") as caught,
    ):
        control.topics()
    assert "Invalid username or password" in caught.value.what
    assert "not-it-at-all" not in caught.value.what
    assert not caught.value.retriable


def test_a_refused_login_is_not_retried(broker: RefusingBroker) -> None:
    with KafkaControl(Connection(broker.servers, LOGIN)) as control, pytest.raises(ControlError):
        control.topics()
    assert broker.logins == 1


def test_a_silent_bootstrap_server_leaves_time_for_the_next_one(
    broker: RefusingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "shuffle", lambda servers: None)
    monkeypatch.setattr(random, "choice", lambda servers: servers[0])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]},{broker.servers}"
        settings = Connection(servers, LOGIN).for_kafka_python() | {"request_timeout_ms": 2000}
        with pytest.raises(LOGIN_REFUSED):
            open_connections(settings, 2000)
    assert broker.logins == 1


def test_a_producer_reports_a_refusal_with_advice(broker: RefusingBroker) -> None:
    with pytest.raises(ProducerFailed, match="Invalid username or password") as caught:
        open_producer(Connection(broker.servers, LOGIN), Tuning(), "job.out.0", lambda: None).init()
    assert "sasl" in caught.value.hint
