"""One producer with its one transaction, which may stay open while it holds rows of an epoch that is not decided."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spark_ckpt.connector_parts.sent_ahead import SentAhead
from spark_ckpt_kafka.producer import ProducerFailed, TransactionalProducer
from spark_ckpt_kafka.rows import StagedPart

Clock = Callable[[], float]
"""Seconds, only growing."""


@dataclass(slots=True)
class Transaction:
    """`begun_s`: when it was begun, by the lane's clock; None before. `sent`: which files' rows are in it."""

    producer: TransactionalProducer
    begun_s: float | None = None
    sent: SentAhead[StagedPart] | None = None

    def begin(self, now_s: float) -> None:
        """Open it, if it is not open."""
        if self.begun_s is None:
            self.producer.begin()
            self.begun_s = now_s

    def rest_of(self, epoch: int, incarnation: int, parts: Sequence[StagedPart]) -> Sequence[StagedPart] | None:
        """Which of an epoch's files are not in it; None if it holds something else."""
        return parts if self.sent is None else self.sent.rest_of(epoch, incarnation, parts)

    def age_s(self, now_s: float) -> float:
        """For how long it has been open; 0 if it is not."""
        return 0.0 if self.begun_s is None else now_s - self.begun_s

    def abort(self) -> None:
        """Best effort: the next producer's init does it anyway."""
        with contextlib.suppress(ProducerFailed):
            self.producer.abort()


class Ahead:
    """The transaction that stays open with rows of an epoch that is not decided, if there is one.

    One that is open for `longest_s`, or holds anything but a beginning of what is wanted next, is aborted.
    """

    def __init__(self, longest_s: float, clock: Clock) -> None:
        self._longest_s = longest_s
        self._clock = clock
        self._too_old: int | None = None
        self.transaction: Transaction | None = None

    @property
    def left_s(self) -> float | None:
        """For how long it may stay open; None if there is none."""
        open_ = self.transaction
        return None if open_ is None else max(0.0, self._longest_s - open_.age_s(self._clock()))

    def keep_only(self, epoch: int, incarnation: int, parts: Sequence[StagedPart]) -> None:
        """Keep it if it holds a beginning of these files, and is young enough to be committed."""
        if self.transaction is None:
            return
        if not self.left_s:
            self.give_up()
        elif self.transaction.rest_of(epoch, incarnation, parts) is None:
            self.drop()

    def was_given_up(self, epoch: int) -> bool:
        """Whether the epoch took so long that nothing more of it is sent ahead."""
        return epoch == self._too_old

    def give_up(self) -> None:
        """It is open for too long: abort it before the broker does."""
        sent = self.transaction.sent if self.transaction else None
        self._too_old = sent.epoch if sent else None
        self.drop()

    def drop(self) -> None:
        """Abort it, if there is one."""
        transaction = self.take()
        if transaction is not None:
            transaction.abort()
            with contextlib.suppress(ProducerFailed):
                transaction.producer.close()

    def take(self) -> Transaction | None:
        """It is the taker's now."""
        transaction, self.transaction = self.transaction, None
        return transaction


@contextlib.contextmanager
def aborting(transaction: Transaction) -> Iterator[None]:
    """Abort it if the work in it fails."""
    try:
        yield
    except Exception:
        transaction.abort()
        raise
