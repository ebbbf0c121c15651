"""A producer with its one transaction, which may stay open with rows of an uncommitted epoch (early send)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spark_ckpt.connector_parts.early_sends import SentEarly
from spark_ckpt_kafka.producer import ProducerFailed, TransactionalProducer
from spark_ckpt_kafka.rows import StagedPart

Clock = Callable[[], float]
"""A monotonic clock in seconds."""


@dataclass(slots=True)
class Transaction:
    """One transaction. `begun_s`: its begin by the shard's clock, None before. `sent`: the files whose rows it
    holds.
    """

    producer: TransactionalProducer
    begun_s: float | None = None
    sent: SentEarly[StagedPart] | None = None

    def begin(self, now_s: float) -> None:
        """Open the transaction, if it is not open."""
        if self.begun_s is None:
            self.producer.begin()
            self.begun_s = now_s

    def rest_of(self, epoch: int, incarnation: int, parts: Sequence[StagedPart]) -> Sequence[StagedPart] | None:
        """Return those files of an epoch that the transaction lacks; None if it holds other files."""
        return parts if self.sent is None else self.sent.rest_of(epoch, incarnation, parts)

    def age_s(self, now_s: float) -> float:
        """Return the seconds since the begin; 0 if it is not open."""
        return 0.0 if self.begun_s is None else now_s - self.begun_s

    def abort(self) -> None:
        """Abort, best effort: the next producer's init aborts it anyway."""
        with contextlib.suppress(ProducerFailed):
            self.producer.abort()


class OpenTransaction:
    """The open transaction of an early send, if there is one.

    It is aborted after `longest_s` seconds, and when its files are no prefix of the next request's files.
    """

    def __init__(self, longest_s: float, clock: Clock) -> None:
        self._longest_s = longest_s
        self._clock = clock
        # Epoch whose early send became too old: the publish sends all of its rows.
        self._too_old: int | None = None
        self.transaction: Transaction | None = None

    @property
    def left_s(self) -> float | None:
        """Seconds that the transaction may still stay open; None if there is none."""
        open_ = self.transaction
        return None if open_ is None else max(0.0, self._longest_s - open_.age_s(self._clock()))

    def keep_only(self, epoch: int, incarnation: int, parts: Sequence[StagedPart]) -> None:
        """Keep the transaction if its files are a prefix of these files and it is young enough to commit; else abort
        it.
        """
        if self.transaction is None:
            return
        # The commit still has to send the rest of the epoch. A transaction that the broker aborts meanwhile would
        # fail the publish, and fence the id.
        if not self.left_s:
            self.give_up()
        elif self.transaction.rest_of(epoch, incarnation, parts) is None:
            self.drop()

    def was_given_up(self, epoch: int) -> bool:
        """Return True if the epoch took so long that nothing more of it is sent early."""
        return epoch == self._too_old

    def give_up(self) -> None:
        """Abort the transaction before the broker does, and send nothing more of its epoch early."""
        sent = self.transaction.sent if self.transaction else None
        self._too_old = sent.epoch if sent else None
        self.drop()

    def drop(self) -> None:
        """Abort the transaction, if there is one."""
        transaction = self.take()
        if transaction is not None:
            transaction.abort()
            with contextlib.suppress(ProducerFailed):
                # Not renewed: its connections may have requests of the transaction in flight.
                transaction.producer.close()

    def take(self) -> Transaction | None:
        """Return the transaction and hand it over to the caller."""
        transaction, self.transaction = self.transaction, None
        return transaction


@contextlib.contextmanager
def aborting(transaction: Transaction) -> Iterator[None]:
    """Abort the transaction if the block fails."""
    try:
        yield
    # A killed process aborts nothing: the init of its successor does it.
    except Exception:
        transaction.abort()
        raise
