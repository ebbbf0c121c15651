"""Requests to a cluster's coordinators and partition leaders, over kafka-python's network client.

The calling thread drives the network: nothing is sent or received between two calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from spark_ckpt_kafka.library import (
    CoordinatorType,
    FindCoordinatorRequest,
    MetadataRequest,
    kafka_errors,
    open_connections,
)
from spark_ckpt_kafka.options import Settings

_PAUSE_S = 0.005
_MOVED = (
    kafka_errors.NotCoordinatorError,
    kafka_errors.CoordinatorNotAvailableError,
    kafka_errors.KafkaConnectionError,
    kafka_errors.RequestTimedOutError,
)

Answer = Any
"""Answer to a request, or a future of one: kafka-python has no types."""


class Cluster:
    """Connections to the brokers of one cluster. Raises kafka-python's errors."""

    def __init__(self, settings: Settings, connect_timeout_ms: int) -> None:
        self._network, self._connections = open_connections(settings, connect_timeout_ms)
        self._coordinators: dict[tuple[int, str], str] = {}

    def ask_coordinator(
        self,
        kind: CoordinatorType,
        key: str,
        request: Callable[[], object],
        code: Callable[[Answer], int],
        wait_s: float,
    ) -> Answer:
        """Return the answer of a key's coordinator; `code` reads its error code. Asks again on errors that pass, for
        `wait_s` seconds.

        So the request must have the same effect when it is received twice.
        """
        return self._connections.run(self._ask_coordinator, kind, key, request, code, time.monotonic() + wait_s)

    def leaders(self, topic: str, wait_s: float) -> list[int]:
        """Return the broker that leads each partition of a topic. Waits while a partition has no leader."""
        found: list[int] = self._connections.run(self._leaders, topic, time.monotonic() + wait_s)
        return found

    def send(self, request: object, node: int, timeout_ms: int) -> Answer:
        """Send a request to a broker, and return what `wait` takes."""
        return self._connections.run(self._send, request, node, timeout_ms)

    def wait(self, future: Answer, wait_s: float) -> Answer:
        """Return the answer."""
        return self._connections.run(self._connections.wait_for, future[0], wait_s * 1000)

    def take_news(self) -> None:
        """Notice what happened to the connections since the last call, such as their end."""
        self._connections.run(self._pause)

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()
        self._network.close()

    async def _ask_coordinator(
        self,
        kind: CoordinatorType,
        key: str,
        request: Callable[[], object],
        code: Callable[[Answer], int],
        until_s: float,
    ) -> Answer:
        while True:
            try:
                node = self._coordinators.get((kind, key)) or await self._find(kind, key)
                answer = await self._connections.send(request(), node)
                raise_for(code(answer))
            except kafka_errors.RetriableError as error:
                if time.monotonic() > until_s:
                    raise
                if isinstance(error, _MOVED):
                    self._coordinators.pop((kind, key), None)
                await self._pause()
            else:
                return answer

    async def _find(self, kind: CoordinatorType, key: str) -> str:
        # The connection chooses the version: an old one takes `key`, a new one `coordinator_keys`.
        request = FindCoordinatorRequest(key=key, key_type=kind.value, coordinator_keys=[key])
        answer = await self._connections.send(request)
        found = answer.coordinators[0] if answer.coordinators else answer
        raise_for(found.error_code)
        node: str = self._connections.cluster.add_coordinator(found, kind, key)
        self._coordinators[kind, key] = node
        return node

    async def _leaders(self, topic: str, until_s: float) -> list[int]:
        cluster = self._connections.cluster
        while True:
            request = MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
            )
            answer = await self._connections.send(request)
            cluster.update_metadata(answer)
            found = answer.topics[0]
            leaders = [each.leader_id for each in sorted(found.partitions, key=lambda each: each.partition_index)]
            if not found.error_code and min(leaders, default=-1) >= 0:
                return leaders
            error = (
                kafka_errors.for_code(found.error_code) if found.error_code else kafka_errors.LeaderNotAvailableError
            )
            if not issubclass(error, kafka_errors.RetriableError) or time.monotonic() > until_s:
                raise error(f"topic {topic}")
            await self._pause()

    async def _send(self, request: object, node: int, timeout_ms: int) -> list[Answer]:
        until_s = time.monotonic() + timeout_ms / 1000
        # A broker with quotas pauses its connections.
        while (connection := self._connections.get_connection(node)).paused and time.monotonic() < until_s:
            await self._pause()
        # In a list: a future that is returned would be awaited.
        return [connection.send_request(request, request_timeout_ms=timeout_ms)]

    async def _pause(self) -> None:
        await self._network.sleep(_PAUSE_S)


def raise_for(code: int) -> None:
    """Raise the error of a broker's answer, unless there is none."""
    if code:
        raise kafka_errors.for_code(code)()
