"""The data plane: one transaction of one transactional id, behind one small Protocol.

A producer is used for one transaction after one initialisation and then thrown away: two transactions
under one producer epoch cannot be told apart by a delayed commit request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import util
from typing import Literal, Protocol

from spark_ckpt.errors import EnvironmentUnfit
from spark_ckpt_kafka.options import Connection, Tuning

Plane = Literal["confluent-kafka", "kafka-python"]
Headers = list[tuple[str, bytes | None]]
Progress = Callable[[], None]
"""Called whenever the cluster has acknowledged something: silence for long means a hung client."""

Refusal = Literal["", "record", "size", "partition"]
"""Of a record by the broker; of a batch or a record by its size; of a partition that the client does not know (yet)."""

COMMIT_TIMEOUT_S = 30.0
INIT_TIMEOUT_S = 30.0
ABORT_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows in sending order, as columns of equal length; None stands for the default in every row.

    `timestamps` are milliseconds since 1970, None means now; a partition of None is chosen by the key's hash.
    """

    topic: str
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    topics: Sequence[str | None] | None = None
    partitions: Sequence[int | None] | None = None
    timestamps: Sequence[int | None] | None = None
    headers: Sequence[Headers | None] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def plain(self) -> bool:
        """Whether there is nothing but keys and values for one topic."""
        return not (self.topics or self.partitions or self.timestamps or self.headers)


class ProducerFailed(Exception):
    """The transaction's outcome is "not committed" or unknown. Init a new producer and ask the marker.

    `fenced`: somebody else initialised the transactional id, or the transaction timed out. `refusal`: a record, or a batch by
    its size, was refused for what it is. `key`: of the record that was refused, if the client names it.
    """

    def __init__(
        self, what: str, *, fenced: bool = False, hint: str = "", refusal: Refusal = "", key: str | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.fenced = fenced
        self.hint = hint
        self.refusal = refusal
        self.key = key


class TransactionalProducer(Protocol):
    """One transaction. Every call is bounded in time and raises `ProducerFailed`."""

    def init(self) -> None:
        """Fence every older producer of the id; returns when their transactions are decided."""

    def begin(self) -> None:
        """Open the transaction."""

    def send(self, chunk: Chunk) -> None:
        """Queue rows in order. Waits while too much is unacknowledged, so memory is bounded."""

    def add_marker(self, group: str, topic: str, epoch: int, metadata: str) -> None:
        """Put the marker (offset of partition 0) into the transaction."""

    def deliver(self) -> int:
        """Wait until every row is acknowledged; how many were. Raises if a single one failed."""

    def commit(self) -> None:
        """Commit. Success still has to be verified against the marker."""

    def abort(self) -> None:
        """Abort, best effort and brief: the next init does it anyway."""

    def close(self) -> None:
        """Free what a finished transaction holds."""


def choose(plane: Plane | None) -> Plane:
    """The data plane to use: the wanted one, else the faster one that is installed."""
    if plane == "confluent-kafka" and util.find_spec("confluent_kafka") is None:
        raise EnvironmentUnfit("confluent-kafka is not installed", hint="pip install 'spark-ckpt[kafka-fast]'")
    if plane is not None:
        return plane
    return "confluent-kafka" if util.find_spec("confluent_kafka") else "kafka-python"


def open_producer(
    plane: Plane, connection: Connection, tuning: Tuning, transactional_id: str, progress: Progress
) -> TransactionalProducer:
    """A new producer of the plane. Imports only the client that is used."""
    if plane == "confluent-kafka":
        from spark_ckpt_kafka.confluent_producer import ConfluentProducer

        return ConfluentProducer(connection, tuning, transactional_id, progress)
    from spark_ckpt_kafka.kafka_python_producer import KafkaPythonProducer

    return KafkaPythonProducer(connection, tuning, transactional_id, progress)


def hint_for(text: str) -> str:
    """What an operator can do about a client's error text; empty when nothing but waiting helps."""
    for words, hint in _HINTS.items():
        if any(word in text for word in words.split("|")):
            return hint
    return ""


def refusal_of(text: str) -> Refusal:
    """What a client's error text says was refused; empty for what may pass."""
    return next((kind for words, kind in _REFUSALS.items() if any(word in text for word in words.split("|"))), "")


_REFUSALS: dict[str, Refusal] = {
    "MSG_SIZE_TOO_LARGE|MessageSizeTooLarge|RecordListTooLarge|RECORD_LIST_TOO_LARGE": "size",
    "INVALID_RECORD|InvalidRecord|INVALID_TIMESTAMP|InvalidTimestamp|_INVALID_DIFFERENT_RECORD": "record",
    # kafka-python's own words
    "headers items must be|Need at least one: key or value|a batch which had one": "record",
    "_UNKNOWN_PARTITION|Unrecognized partition": "partition",
}

_HINTS = {
    "SaslAuthenticationFailed|UnsupportedSaslMechanism|IllegalSaslState|_AUTHENTICATION": (
        "check security.protocol, sasl.mechanism, user name and password"
    ),
    "MSG_SIZE_TOO_LARGE|MessageSizeTooLarge|RecordListTooLarge": (
        "raise the topic's max.message.bytes and the sink's option max.request.size"
    ),
    "AUTHORIZATION|AuthorizationFailed": (
        "grant Write on the topic and on the transactional id, Read on the sink's group"
    ),
    "INVALID_TRANSACTION_TIMEOUT|InvalidTransactionTimeout": (
        "lower the sink's option transaction.timeout.ms, or raise the broker's transaction.max.timeout.ms"
    ),
}
