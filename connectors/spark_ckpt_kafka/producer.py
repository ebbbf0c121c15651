"""The data plane: one transaction of one transactional id, as a small Protocol.

A producer initialises once, runs one transaction, and is discarded. A delayed commit request could hit the wrong one of
two transactions under one producer epoch.
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
"""Called at each acknowledgement of the cluster; a long silence means a hung client."""

Refusal = Literal["", "record", "size", "partition"]
"""Reason of a refusal: "record" by the broker; "size" of a batch or record; "partition" unknown to the client (yet)."""

COMMIT_TIMEOUT_S = 30.0
INIT_TIMEOUT_S = 30.0
ABORT_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows in sending order, as columns of equal length. A column of None stands for the default in every row.

    `timestamps` are milliseconds since 1970, None means now. A partition of None is chosen by the key's hash.
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
        """True if the rows have only keys and values, for one topic."""
        return not (self.topics or self.partitions or self.timestamps or self.headers)


class ProducerFailed(Exception):
    """Raised when a transaction is not committed or its outcome is unknown. Recovery: new producer, read the marker.

    - `fenced`: another producer initialised the transactional id, or the transaction timed out.
    - `refusal`: the broker or client refused a record for its content, or a batch for its size.
    - `key`: key of the refused record, if the client names it.
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
    """One transaction. Every call has a timeout and raises `ProducerFailed`."""

    def init(self) -> None:
        """Fence every older producer of the id. Returns when their transactions are decided."""

    def begin(self) -> None:
        """Open the transaction."""

    def send(self, chunk: Chunk) -> None:
        """Queue rows in order. Blocks while too much is unacknowledged, so that memory is bounded."""

    def add_marker(self, group: str, topic: str, epoch: int, metadata: str) -> None:
        """Write the marker (offset of partition 0) into the transaction."""

    def deliver(self) -> int:
        """Wait until every row is acknowledged, and return their number. Raises if a single row failed."""

    def commit(self) -> None:
        """Commit. The caller has to verify success with the marker."""

    def abort(self) -> None:
        """Abort, best effort and brief: the next init aborts anyway."""

    def close(self) -> None:
        """Free the resources of a finished transaction."""


def choose(plane: Plane | None) -> Plane:
    """Return the data plane to use: `plane` if given, else the fastest one installed. Raises `EnvironmentUnfit`."""
    if plane == "confluent-kafka" and util.find_spec("confluent_kafka") is None:
        raise EnvironmentUnfit("confluent-kafka is not installed", hint="pip install 'spark-ckpt[kafka-fast]'")
    if plane is not None:
        return plane
    return "confluent-kafka" if util.find_spec("confluent_kafka") else "kafka-python"


def open_producer(
    plane: Plane, connection: Connection, tuning: Tuning, transactional_id: str, progress: Progress
) -> TransactionalProducer:
    """Return a new producer of the plane. Imports only the client in use."""
    if plane == "confluent-kafka":
        from spark_ckpt_kafka.confluent_producer import ConfluentProducer

        return ConfluentProducer(connection, tuning, transactional_id, progress)
    from spark_ckpt_kafka.kafka_python_producer import KafkaPythonProducer

    return KafkaPythonProducer(connection, tuning, transactional_id, progress)


def hint_for(text: str) -> str:
    """Return advice for a client's error text; empty if only waiting helps."""
    for words, hint in _HINTS.items():
        if any(word in text for word in words.split("|")):
            return hint
    return ""


def refusal_of(text: str) -> Refusal:
    """Return the kind of refusal in a client's error text; empty for an error that may pass."""
    return next((kind for words, kind in _REFUSALS.items() if any(word in text for word in words.split("|"))), "")


_REFUSALS: dict[str, Refusal] = {
    "MSG_SIZE_TOO_LARGE|MessageSizeTooLarge|RecordListTooLarge|RECORD_LIST_TOO_LARGE": "size",
    "INVALID_RECORD|InvalidRecord|INVALID_TIMESTAMP|InvalidTimestamp|_INVALID_DIFFERENT_RECORD": "record",
    # Error texts of kafka-python itself.
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
