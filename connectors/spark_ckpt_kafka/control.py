"""The control plane: topics, offsets and markers, read and written through kafka-python's admin client.

Every request has a timeout, so that a wrong address costs seconds and not minutes.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from spark_ckpt_kafka.library import (
    LOGIN_REFUSED,
    ConfigResource,
    ConfigResourceType,
    CoordinatorType,
    IsolationLevel,
    KafkaAdminClient,
    NewTopic,
    OffsetAndMetadata,
    OffsetFetchRequest,
    OffsetSpec,
    TopicPartition,
    kafka_errors,
    open_admin,
)
from spark_ckpt_kafka.marker import TopicMarker, decode
from spark_ckpt_kafka.options import Connection

REQUEST_TIMEOUT_S = 6.0
MARKER_TIMEOUT_S = 20.0
SETTLE_TIMEOUT_S = 12.0
"""Longer than a cluster needs to notice a dead broker: 9 s by default (broker.session.timeout.ms)."""
_RETRY_PAUSE_S = 0.01
_RECONNECT_PAUSE_S = 0.2

_STARTING = (kafka_errors.NodeNotReadyError,)
"""Errors of a broker that has just started: it answers before its metadata names any node."""

_MOVING = (
    *_STARTING,
    kafka_errors.KafkaConnectionError,
    kafka_errors.LeaderNotAvailableError,
    kafka_errors.NotLeaderForPartitionError,
    kafka_errors.RequestTimedOutError,
)
"""Errors while a cluster has not noticed that a broker is dead or frozen. At a wrong address no client gets so far."""

_UNDECIDED = (
    *_MOVING,
    kafka_errors.UnstableOffsetCommitError,
    kafka_errors.CoordinatorLoadInProgressError,
    kafka_errors.CoordinatorNotAvailableError,
    kafka_errors.NotCoordinatorError,
)

_HAS_MEMBERS = (
    kafka_errors.UnknownMemberIdError,
    kafka_errors.IllegalGenerationError,
    kafka_errors.RebalanceInProgressError,
)

Positions = dict[tuple[str, int], int]
"""Offsets by (topic, partition)."""

Topics: TypeAlias = "Iterable[str] | re.Pattern[str]"
"""Topics by name, or those that match, except internal ones."""

T = TypeVar("T")


class ControlError(Exception):
    """Raised when the cluster refuses a request or does not answer. `retriable`: a later attempt may succeed."""

    def __init__(self, what: str, *, hint: str, retriable: bool) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.retriable = retriable


class KafkaControl:
    """One admin connection, opened at first use and again after an error. Not thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin: KafkaAdminClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def topics(self) -> list[str]:
        """Return the names of all topics except those that the brokers mark as internal, like Spark's
        `subscribePattern`.

        A user's own topic may begin with two underscores.
        """
        answer = self._call(lambda admin: _metadata(admin, None))
        return sorted(topic["name"] for topic in answer["topics"] if not topic["is_internal"])

    def partitions(self, topics: Topics) -> dict[str, list[int]]:
        """Return the partition numbers of each topic. Raises `ControlError` for a topic that does not exist."""
        found = self._metadata_of(topics)["topics"]
        return {topic["name"]: sorted(one["partition_index"] for one in topic["partitions"]) for topic in found}

    def identity(self, topics: Topics) -> dict[str, str]:
        """Return the endpoint: the id of the cluster and of each topic. A topic that was deleted and re-created has
        another id.

        The id of a topic is empty for brokers before 2.8, which have none. Raises `ControlError` for a topic that does
        not exist.
        """
        answer = self._metadata_of(topics)
        ids = {f"topic {topic['name']}": _id_text(topic.get("topic_id")) for topic in answer["topics"]}
        return {"cluster": str(answer["cluster_id"])} | ids

    def _metadata_of(self, topics: Topics) -> dict[str, Any]:
        pattern = topics if isinstance(topics, re.Pattern) else None
        wanted = sorted(set(topics)) if not isinstance(topics, re.Pattern) else None
        answer = self._call(lambda admin: _metadata(admin, wanted))
        if pattern is not None:
            # Names and content of one answer: another broker may not know a new topic yet, and would deny it.
            named = [each for each in answer["topics"] if not each["is_internal"] and pattern.fullmatch(each["name"])]
            answer = answer | {"topics": named}
        for topic in answer["topics"]:
            _check_topic(topic["name"], topic["error_code"], self._connection.servers)
        return answer

    def beginnings(self, partitions: Mapping[str, Sequence[int]]) -> Positions:
        """Return the first offset that retention has left in each partition."""
        return self._offsets(partitions, OffsetSpec.EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def ends(self, partitions: Mapping[str, Sequence[int]], *, committed: bool = True) -> Positions:
        """Return the offset after the last readable record. With `committed`, that is the last stable offset."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(partitions, OffsetSpec.LATEST, level)

    def first_at(self, partitions: Mapping[str, Sequence[int]], at_ms: int) -> Positions:
        """Return the first offset of each partition with a timestamp of at least `at_ms`.

        Partitions without such a record are left out.
        """
        # Negative times are no times in this request: -1 asks for the end, -2 for the beginning.
        found = self._offsets(partitions, max(at_ms, 0), IsolationLevel.READ_UNCOMMITTED)
        return {place: offset for place, offset in found.items() if offset >= 0}

    def marker(self, group: str, topic: str) -> TopicMarker | None:
        """Return the marker of a shard, or None. Waits while a transaction that writes it is in progress.

        None means "no error and no offset" only: for an unstable offset the broker answers -1 with an error.
        """
        offset, metadata = self._call(lambda admin: _fetch_offset(admin, group, topic), _UNDECIDED, MARKER_TIMEOUT_S)
        return None if offset == -1 else decode(offset, metadata, group)

    def decided_marker(self, group: str, topic: str) -> TopicMarker | None:
        """Return the marker of the shard's last committed transaction. Does not wait for a transaction in progress."""
        offset, metadata = self._call(lambda admin: _fetch_offset(admin, group, topic, stable=False), _UNDECIDED)
        return None if offset == -1 else decode(offset, metadata, group)

    def show_offsets(self, group: str, offsets: Positions) -> None:
        """Commit offsets of a group that has no members. Raises `ControlError`, also for a group with members."""
        given = {TopicPartition(*place): OffsetAndMetadata(offset, "", None) for place, offset in offsets.items()}
        try:
            self._call(lambda admin: _commit(admin, group, given), _UNDECIDED)
        except ControlError as error:
            if not isinstance(error.__cause__, _HAS_MEMBERS):
                raise
            raise ControlError(
                f"group {group!r} has members, so that it cannot show the job's position",
                hint="give shown_group a name that no consumer uses",
                retriable=False,
            ) from error

    def settings(self, topic: str | None = None) -> dict[str, str]:
        """Return the settings of a topic, or of one broker, by Kafka's names. Empty if the cluster refuses to describe
        them.

        Raises `ControlError` if it does not answer: an outage at the start must not switch off the topic's limits.
        """
        try:
            answer: Mapping[str, Mapping[str, Mapping[str, Any]]] = self._call(lambda admin: _described(admin, topic))
        except ControlError as error:
            if isinstance(error.__cause__, kafka_errors.RetriableError | OSError):
                raise
            return {}
        found = next((each for named in answer.values() for each in named.values()), {})
        return {key: str(each["value"]) for key, each in found.items() if each.get("value") is not None}

    def create_topic(self, topic: str, partitions: int, replication: int = 1) -> None:
        """Create a topic. A topic that exists is left as it is."""
        spec = NewTopic(name=topic, num_partitions=partitions, replication_factor=replication)
        try:
            self._call(lambda admin: admin.create_topics([spec]))
        except ControlError as error:
            # `_call` repeats a request whose answer was lost: the first one may have created the topic.
            if not isinstance(error.__cause__, kafka_errors.TopicAlreadyExistsError):
                raise

    def _offsets(self, partitions: Mapping[str, Sequence[int]], spec: Any, level: Any) -> Positions:
        specs = {TopicPartition(topic, one): spec for topic, numbers in partitions.items() for one in numbers}
        if not specs:
            return {}
        timeout_ms = int(REQUEST_TIMEOUT_S * 1000)
        # A broker has just described these partitions: one that does not know them will learn of them.
        passing = (*_MOVING, kafka_errors.UnknownTopicOrPartitionError)
        found = self._call(lambda admin: admin.list_partition_offsets(specs, level, timeout_ms), passing)
        return {(place.topic, place.partition): answer.offset for place, answer in found.items()}

    def _call(
        self,
        request: Callable[[Any], T],
        passing: tuple[type[Exception], ...] = _MOVING,
        patience_s: float = SETTLE_TIMEOUT_S,
    ) -> T:
        """Return the answer. Repeats the request on errors of `passing`, for `patience_s` seconds at most."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return self._ask(request)
            except ControlError as error:
                if not isinstance(error.__cause__, passing) or time.monotonic() > deadline:
                    raise
                # `_ask` has kept the connection only for a commit that is in progress, which takes milliseconds.
                time.sleep(_RETRY_PAUSE_S if self._admin else _RECONNECT_PAUSE_S)

    def _ask(self, request: Callable[[Any], T]) -> T:
        try:
            return request(self._open())
        except (kafka_errors.KafkaError, OSError) as error:
            # While a transaction ends this error comes every 10 ms, and a new connection would take longer than that.
            if not isinstance(error, kafka_errors.UnstableOffsetCommitError):
                self.close()  # the client caches coordinators and may have lost its connection
            raise _translated(error, self._connection.servers) from error

    def _open(self) -> KafkaAdminClient:
        if self._admin is None:
            timeout_ms = int(REQUEST_TIMEOUT_S * 1000)
            settings = self._connection.for_kafka_python()
            settings |= {"request_timeout_ms": timeout_ms, "bootstrap_timeout_ms": timeout_ms}
            settings |= {"retry_backoff_ms": 20, "reconnect_backoff_max_ms": 300}
            self._admin = open_admin(settings)
        return self._admin


class KeptControl:
    """A control connection that stays open between requests. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._control = KafkaControl(connection)
        self._turn = threading.Lock()

    def ask(self, question: Callable[[KafkaControl], T]) -> T:
        """Return the answer to `question`. Repeats a retriable failure once over a new connection.

        A broker closes a connection that was idle for long.
        """
        with self._turn:
            try:
                return question(self._control)
            except ControlError as error:
                if not error.retriable:
                    raise
                return question(self._control)

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        with self._turn:
            self._control.close()


def _fetch_offset(admin: Any, group: str, topic: str, *, stable: bool = True) -> tuple[int, str]:
    """Return (committed offset, metadata) of partition 0 from the group's coordinator. `stable` sets require_stable."""
    # A request of our own: kafka-python's calls omit require_stable, or report an unknown topic as "no offset".
    manager = admin._manager
    node = manager.run(admin._find_coordinator_id, group, CoordinatorType.GROUP)
    fetch = OffsetFetchRequest
    v7 = fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    v8 = fetch.OffsetFetchRequestGroup(
        group_id=group,
        topics=[fetch.OffsetFetchRequestGroup.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])],
    )
    # Version 7 brought require_stable (KIP-447). Without it a broker answers with the offset before a pending commit,
    # and rows would come twice.
    request = fetch(group_id=group, topics=[v7], groups=[v8], require_stable=stable, min_version=7, max_version=8)
    answer = manager.run(manager.send, request, node)
    part = answer.groups[0] if answer.groups else answer
    _raise_for(part.error_code, group)
    one = part.topics[0].partitions[0]
    # The partition's own code counts: for UNKNOWN_TOPIC_OR_PARTITION kafka-python's `committed` returns no offset, as
    # if nothing were published.
    _raise_for(one.error_code, group)
    return one.committed_offset, one.metadata or ""


def _commit(admin: Any, group: str, offsets: Mapping[Any, Any]) -> None:
    # The request as a whole always succeeds; each partition carries its own error.
    for refused in admin.alter_group_offsets(group, offsets).values():
        if refused is not kafka_errors.NoError:
            raise refused(f"showing offsets in group {group}")


def _raise_for(code: int, group: str) -> None:
    if code:
        raise kafka_errors.for_code(code)(f"reading the marker of group {group}")


def _metadata(admin: Any, topics: Sequence[str] | None) -> dict[str, Any]:
    answer: dict[str, Any] = admin._manager.run(admin._get_cluster_metadata, topics)
    # A broker without a cluster id is still starting.
    if not answer["cluster_id"]:
        raise kafka_errors.NodeNotReadyError("the cluster does not report its id yet")
    return answer


def _described(admin: Any, topic: str | None) -> Any:
    brokers = [] if topic else _metadata(admin, [])["brokers"]
    kind = ConfigResourceType.TOPIC if topic else ConfigResourceType.BROKER
    # kafka-python's own filter, "modified", leaves out settings at their default, such as max.message.bytes.
    return admin.describe_configs([ConfigResource(kind, topic or str(brokers[0]["node_id"]))], config_filter="all")


def _id_text(topic_id: object) -> str:
    # A broker without ids of topics leaves the UUID at zero.
    text = str(topic_id or "")
    return "" if not text.strip("0-") else text


def _check_topic(name: str, code: int, servers: str) -> None:
    if code == 0:
        return
    error = kafka_errors.for_code(code)
    if issubclass(error, kafka_errors.UnknownTopicOrPartitionError):
        raise ControlError(
            f"topic {name!r} does not exist",
            hint=f"create it: kafka-topics.sh --bootstrap-server {servers} --create --topic {name} --partitions N",
            retriable=False,
        )
    raise _translated(error(name), name)


def _translated(error: Exception, servers: str) -> ControlError:
    """Return the `ControlError` of a client error, with advice for an operator."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, kafka_errors.AuthorizationError):
        hint = "grant Describe, Read and Write on the topic, Write on the transactional id, Read on the group"
        return ControlError(f"access denied by {servers} ({text})", hint=hint, retriable=False)
    if isinstance(error, LOGIN_REFUSED):
        hint = "check security.protocol, sasl.mechanism, user name and password"
        return ControlError(f"login refused by {servers} ({text})", hint=hint, retriable=False)
    if isinstance(error, kafka_errors.UnknownTopicOrPartitionError):
        return ControlError(f"a topic or partition does not exist ({text})", hint="create it", retriable=False)
    return ControlError(
        f"no usable answer from Kafka at {servers} ({text})",
        hint="check that the broker runs, its advertised listeners are reachable, and the security options",
        retriable=True,
    )
