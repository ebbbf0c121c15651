"""kafka-python's network client, with a fix for refused logins.

A broker that refuses a login answers and closes the connection. kafka-python drops an answer that arrives together with
the end of the connection. It also forgets a refusal that it did read, logs in again until its timeout, and reports that
timeout.
"""

from __future__ import annotations

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

Received = tuple[bytes, Exception | None]


class _Connections(KafkaConnectionManager):  # type: ignore[misc]
    """Connects like its parent; a refused login is final for the node, as the parent intends."""

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
