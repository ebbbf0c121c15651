"""Requests to a cluster's coordinators and partition leaders, over kafka-python's network client.

The calling thread drives the network: nothing is sent or received between two calls.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
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
    kafka_errors.NodeNotReadyError,
    kafka_errors.RequestTimedOutError,
)

Answer = Any
"""Answer to a request, or a future of one: kafka-python has no types."""


class Cluster:
    """Connections to the brokers of one cluster. Raises kafka-python's errors."""

    def __init__(self, settings: Settings, connect_timeout_ms: int) -> None:
        self._network, self._connections = open_connections(settings, connect_timeout_ms)
        self._coordinators: dict[tuple[int, str], str] = {}
        self._topic_ids: dict[str, object] = {}

    def ask_coordinator(
        self,
        kind: CoordinatorType,
        key: str,
        request: Callable[[], object],
        code: Callable[[Answer], int],
        wait_s: float,
    ) -> Answer:
        """Return the answer of a key's coordinator; `code` reads its error code.

        Asks again for `wait_s` seconds while the error may pass. So the request must be one that can be received twice.
        """
        return self._connections.run(self._patiently, wait_s, lambda: self._ask_coordinator(kind, key, request, code))

    def leaders(self, topic: str, wait_s: float) -> list[int]:
        """Return the broker that leads each partition of a topic. Waits while a partition has none.

        Raises `KafkaError` if the topic is not the one of the first call: it was deleted and created again.
        """
        found: list[int] = self._connections.run(self._patiently, wait_s, lambda: self._leaders(topic))
        return found

    def send(self, request: object, node: int, timeout_ms: int) -> Answer:
        """Send a request to a broker, and return what `wait` takes. `wait` raises also if no connection is ready."""
        return self._connections.run(self._send, request, node, timeout_ms)

    def wait(self, future: Answer, wait_s: float) -> Answer:
        """Return the answer."""
        return self._connections.run(self._connections.wait_for, future[0], wait_s * 1000)

    def pause(self, pause_s: float) -> None:
        """Wait, and receive meanwhile."""
        self._connections.run(self._pause, pause_s)

    def take_news(self) -> None:
        """Notice what happened to the connections since the last call, such as their end."""
        self._network.poll(timeout_ms=0)

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()
        self._network.close()

    async def _pause(self, pause_s: float) -> None:
        await self._network.sleep(pause_s)

    async def _patiently(self, wait_s: float, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        until_s = time.monotonic() + wait_s
        while True:
            try:
                return await ask()
            except kafka_errors.RetriableError:
                if time.monotonic() > until_s:
                    raise
            await self._network.sleep(_PAUSE_S)

    async def _ask_coordinator(
        self, kind: CoordinatorType, key: str, request: Callable[[], object], code: Callable[[Answer], int]
    ) -> Answer:
        try:
            node = self._coordinators.get((kind, key)) or await self._find(kind, key)
            answer = await self._connections.send(request(), node)
            raise_for(code(answer))
        # The coordinator moves with the leader of its partition of __transaction_state or __consumer_offsets.
        except _MOVED:
            self._coordinators.pop((kind, key), None)
            raise
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

    async def _leaders(self, topic: str) -> list[int]:
        topics = [MetadataRequest.MetadataRequestTopic(name=topic)]
        answer = await self._connections.send(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
        self._connections.cluster.update_metadata(answer)
        found = answer.topics[0]
        raise_for(found.error_code)
        # A batch that is sent again must not go into an empty topic of the same name: what came before it is lost there.
        if self._topic_ids.setdefault(topic, found.topic_id) != found.topic_id:
            raise kafka_errors.KafkaError(f"topic {topic} was deleted and created again")
        partitions = sorted(found.partitions, key=lambda each: each.partition_index)
        if any(each.leader_id < 0 for each in partitions):
            # Retriable: `_patiently` asks again until the partition has elected one.
            raise kafka_errors.LeaderNotAvailableError(f"topic {topic}")
        # A place in the list is the number of a partition.
        return [each.leader_id for each in partitions]

    async def _send(self, request: object, node: int, timeout_ms: int) -> list[Answer]:
        until_s = time.monotonic() + timeout_ms / 1000
        with suppress(kafka_errors.NodeNotReadyError):  # then `send` returns a future with this error
            # A broker with quotas pauses its connections.
            while self._connections.get_connection(node).paused and time.monotonic() < until_s:
                await self._network.sleep(_PAUSE_S)
        # In a list: a future that is returned would be awaited.
        return [self._connections.send(request, node, timeout_ms)]


def raise_for(code: int) -> None:
    """Raise the error of a broker's answer, unless there is none."""
    if code:
        raise kafka_errors.for_code(code)()
