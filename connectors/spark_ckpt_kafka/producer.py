"""The data plane: one transaction of one transactional id, as a small Protocol.

A producer initialises once, runs one transaction, and is discarded. A delayed commit request could hit the wrong one of
two transactions under one producer epoch.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Literal, Protocol

from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.record_batches import Chunk

Progress = Callable[[], None]
"""Called at each acknowledgement of the cluster; a long silence means a hung client."""

Clock = Callable[[], int]
"""Milliseconds since 1970."""

Refusal = Literal["", "record", "size", "partition"]
"""Reason of a refusal: "record" by the broker; "size" of a batch or record; "partition" unknown to the client (yet)."""

COMMIT_TIMEOUT_S = 30.0
INIT_TIMEOUT_S = 30.0
# It is below `publisher_process.DROP_S`, the time that the driver waits for the end of an early send.
ABORT_TIMEOUT_S = 3.0


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

    def renew(self) -> TransactionalProducer:
        """Return a new producer with the resources of this one, whose transaction has committed."""

    def close(self) -> None:
        """Free the resources."""


def open_producer(
    connection: Connection, tuning: Tuning, transactional_id: str, progress: Progress
) -> TransactionalProducer:
    """Return a new producer."""
    from spark_ckpt_kafka.batch_producer import BatchProducer, open_cluster

    return BatchProducer(
        open_cluster(connection, tuning),
        tuning,
        transactional_id,
        progress,
        lambda: time.time_ns() // 1_000_000,
        random.Random(),  # noqa: S311 - spreads rows without a key
    )


def hint_for(text: str) -> str:
    """Return advice for a client's error text; empty if only waiting helps."""
    for words, hint in _HINTS.items():
        if any(word in text for word in words.split("|")):
            return hint
    return ""


def refusal_of(text: str) -> Refusal:
    """Return the kind of refusal in a client's error text; empty for an error that may pass."""
    return next((kind for words, kind in _REFUSALS.items() if any(word in text for word in words.split("|"))), "")


# Names of errors are compared, since some come as exceptions of the client and others as codes in a broker's answer.
_REFUSALS: dict[str, Refusal] = {
    "MessageSizeTooLarge|RecordListTooLarge": "size",
    "InvalidRecord|InvalidTimestamp": "record",
}

_HINTS = {
    "SaslAuthenticationFailed|UnsupportedSaslMechanism|IllegalSaslState": (
        "check security.protocol, sasl.mechanism, user name and password"
    ),
    "MessageSizeTooLarge|RecordListTooLarge": (
        "raise the topic's max.message.bytes and the sink's option max.request.size"
    ),
    "AuthorizationFailed": ("grant Write on the topic and on the transactional id, Read on the sink's group"),
    "NotEnoughReplicas": "bring brokers back, or lower the topic's min.insync.replicas",
    "InvalidTransactionTimeout": (
        "lower the sink's option transaction.timeout.ms, or raise the broker's transaction.max.timeout.ms"
    ),
}
