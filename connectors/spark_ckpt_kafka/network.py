"""kafka-python's network client, with fixes for refused logins and for brokers that are gone.

A broker that refuses a login answers and closes the connection. kafka-python drops an answer that arrives together with
the end of the connection. It also forgets a refusal that it did read, logs in again until its timeout, and reports that
timeout.

kafka-python draws a bootstrap server, and spends all of its time on one whose host is gone. A broker that has just died is
unknown to it, which it takes for a defect of the program.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import kafka.errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

LOGIN_REFUSED = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)
"""Errors that a second attempt cannot change. The Java client stops after these, too."""

_SETUP_TIMEOUT_MS = 10_000
"""Kafka's default of socket.connection.setup.timeout.ms."""

Received = tuple[bytes, Exception | None]


class _Connections(KafkaConnectionManager):  # type: ignore[misc]
    """Connects like its parent; a refused login is final for the node, as the parent intends."""

    def __init__(self, net: NetworkSelector, **settings: Any) -> None:
        # A broker that is frozen accepts a connection, and says nothing. The caller can ask another one in its time.
        settings["socket_connection_setup_timeout_ms"] = min(_SETUP_TIMEOUT_MS, settings["request_timeout_ms"] // 2)
        super().__init__(net, **settings)
        servers = self.cluster.bootstrap_brokers()
        random.shuffle(servers)
        self._servers = len(servers)
        turns = itertools.cycle(servers)
        # In turns, for the parent may draw the same one again.
        self.cluster.bootstrap_brokers = lambda: [next(turns)]

    def bootstrap(self, timeout_ms: float, refresh: bool = True) -> None:
        """Connect to one of the bootstrap servers. Each has its share of the time."""
        for left in reversed(range(self._servers)):
            try:
                super().bootstrap(timeout_ms / self._servers, refresh)
                break
            except kafka_errors.KafkaTimeoutError:
                if not left:
                    raise

    def get_connection(self, node_id: object, **named: Any) -> Any:
        try:
            return super().get_connection(node_id, **named)
        # The newest metadata do not name a broker that has just died. The parent's `send` takes this for a defect, not for a wait.
        except kafka_errors.UnknownBrokerIdError as error:
            raise kafka_errors.NodeNotReadyError(node_id) from error

    async def _build_transport(self, node: Any, **named: Any) -> Any:
        transport = await super()._build_transport(node, **named)
        transport._sock_recv = _last_words_first(transport._sock_recv)
        return transport

    async def _connect(self, node: Any, conn: Any, **named: Any) -> None:
        await super()._connect(node, conn, **named)
        refused = conn.init_future.exception
        if isinstance(refused, LOGIN_REFUSED):
            self._auth_failures[node.node_id] = refused


def _last_words_first(receive: Callable[[], Received]) -> Callable[[], Received]:
    """Deliver bytes that arrive with an error first; the next read of a closed socket reports the error again."""

    def received() -> Received:
        data, error = receive()
        return (data, None) if data else (data, error)

    return received


def network_client(**settings: Any) -> KafkaNetClient:
    """Return a client for the setting `kafka_client` of kafka-python's admin client."""
    net = NetworkSelector(**settings)
    return KafkaNetClient(net=net, manager=_Connections(net, **settings))


def open_connections(settings: Mapping[str, object], timeout_ms: int) -> tuple[NetworkSelector, KafkaConnectionManager]:
    """Return connections to a cluster that has answered, behind what drives them. The caller closes both."""
    net = NetworkSelector(**settings)
    connections = _Connections(net, **settings)
    try:
        connections.bootstrap(timeout_ms)
    except BaseException:
        connections.close()
        net.close()
        raise
    return net, connections
