"""Sender-based logging by the first three steps of seed 004, and with one rule broken at a time."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_protocols.graph import channel_between
from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.machine import Effect
from checkpoint_protocols.message_logging.sender_log import SentEntry
from checkpoint_protocols.message_logging.sender_logging import (
    PROTOCOL,
    SenderLoggingWorker,
    SenderPhase,
    plan,
    replay_the_failed,
)
from checkpoint_protocols.recovery import Failure, Part, RecoveryPlan
from checkpoint_protocols.vocabulary import AppSent, Received, SinkTransaction


class _WithoutInvariants(SenderLoggingWorker):
    TABLE = SenderLoggingWorker.TABLE | {(SenderPhase.GATED, AppSent): "_on_sent"}

    def _ensure(self, holds: bool, what: str) -> None:
        """Off, so that only the oracles can find the bug."""


class NoGate(_WithoutInvariants):
    """Steps 1 to 3 alone, the seed's "one small problem": the receiver acts before the number of m is logged."""

    def _close(self) -> list[Effect]:
        return []


class AnswersBeforeItIsStored(_WithoutInvariants):
    """G2: sends ACKACK while the sender's record is being written."""

    def _make_durable(self, channel: ChannelId, entry: SentEntry, rsn: int) -> list[Effect]:
        return [*super()._make_durable(channel, entry, rsn), self._ackack(channel, rsn)]


class DoesNotDedupe(_WithoutInvariants):
    """Takes every message as new."""

    def _take(self, event: Received) -> list[Effect]:
        return self._accept(event)


class TakesEarlyMessages(_WithoutInvariants):
    """Takes a message in although an earlier one of its channel is missing."""

    def _keep(self, event: Received) -> list[Effect]:
        return self._accept(event)


class ShowsAtOnce(_WithoutInvariants):
    """G6: rows are output like sends, but without the gate."""

    def _show(self) -> list[Effect]:
        first, self.shown = self.shown, self.order.rsn
        shows = self.is_sink and self.shown > first
        return [SinkTransaction(f"{self.me}/{self.shown}", first, self.shown)] if shows else []

    def _accept(self, event: Received) -> list[Effect]:
        return [*super()._accept(event), *self._show()]


class TakesNoCheckpoint(_WithoutInvariants):
    """The log is never trimmed."""

    def _checkpoint(self) -> list[Effect]:
        return []


class CoversWhatItReceived(_WithoutInvariants):
    """Senders drop messages that no durable checkpoint includes."""

    def _covered(self, channel: ChannelId) -> Effect:
        self.order.covered_up_to[channel] = self.order.received.get(channel, 0)
        return super()._covered(channel)


def _in_order_of_senders(failure: Failure) -> RecoveryPlan:
    """ "Each sender can play the messages back in the order in which they were dispatched": sender by sender."""
    plain = plan(failure)
    return replace(plain, parts={name: _by_sender(part) for name, part in plain.parts.items()})


def _by_sender(part: Part) -> Part:
    key = [(channel_between(each.source, each.target), each.seq) for each in part.replay]
    return replace(part, replay=tuple(message for _, message in sorted(zip(key, part.replay, strict=True), key=_first)))


def _first(pair: tuple[tuple[str, int], object]) -> tuple[str, int]:
    return pair[0]


NO_GATE = replace(PROTOCOL, worker=NoGate, plan=replay_the_failed)
ANSWERS_BEFORE_IT_IS_STORED = replace(PROTOCOL, worker=AnswersBeforeItIsStored, plan=replay_the_failed)
DOES_NOT_DEDUPE = replace(PROTOCOL, worker=DoesNotDedupe)
TAKES_EARLY_MESSAGES = replace(PROTOCOL, worker=TakesEarlyMessages)
SHOWS_AT_ONCE = replace(PROTOCOL, worker=ShowsAtOnce)
COVERS_WHAT_IT_RECEIVED = replace(PROTOCOL, worker=CoversWhatItReceived, plan=replay_the_failed)
TAKES_NO_CHECKPOINT = replace(PROTOCOL, worker=TakesNoCheckpoint)
IN_ORDER_OF_SENDERS = replace(PROTOCOL, plan=_in_order_of_senders)
