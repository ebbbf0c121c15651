"""Synchronous logging with one rule broken at a time. The seed's text leaves these rules open."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_protocols.machine import Effect
from checkpoint_protocols.message_logging.synchronous_logging import PROTOCOL, LoggingPhase, LoggingWorker, plan
from checkpoint_protocols.recovery import Failure, RecoveryPlan
from checkpoint_protocols.vocabulary import CaptureState, Commanded, Drop, Received, SinkTransaction, Stored


class _WithoutInvariants(LoggingWorker):
    def _ensure(self, holds: bool, what: str) -> None:
        """Off, so that only the oracles can find the bug."""

    def _see(self, event: Received) -> None:
        """Accept gaps too."""
        self.seen[event.channel] = max(self._seen(event.channel), event.message.seq)


class DeliversBeforeItIsStored(_WithoutInvariants):
    """The application sees a message while its record is being written: asynchronous logging by mistake."""

    def _next_record(self) -> list[Effect]:
        effects = super()._next_record()
        batch, self.batch = self.batch, []
        self.phase = LoggingPhase.IDLE
        return [*effects, *self._deliver(batch)]

    def _on_checkpoint_stored(self, event: Stored) -> list[Effect]:
        return [] if event.token.startswith("log") else super()._on_checkpoint_stored(event)


class ShowsWhatItReplays(_WithoutInvariants):
    """Every incarnation publishes all that it delivers, even if the sink has it."""

    def _on_start(self, event: Commanded) -> list[Effect]:
        self.shown = self.order
        return super()._on_start(event)


class ShowsWhatItDelivers(_WithoutInvariants):
    """An incarnation does not publish rows that an earlier one delivered."""

    def _on_start(self, event: Commanded) -> list[Effect]:
        return [effect for effect in super()._on_start(event) if not isinstance(effect, SinkTransaction)]


class DoesNotDedupe(_WithoutInvariants):
    """Takes every message as new."""

    def _known(self, event: Received) -> bool:
        return False


class DropsRepetitionsAtOnce(_WithoutInvariants):
    """Drops a repetition before its original is durable, so that the channel has neither."""

    def _on_another(self, event: Received) -> list[Effect]:
        if event.message.seq <= self._seen(event.channel):
            return [Drop(event, "came before")]
        return super()._on_another(event)


class TrimsTooEarly(_WithoutInvariants):
    """The log is trimmed when the checkpoint is taken, not when it is durable."""

    def _checkpoint(self) -> list[Effect]:
        effects = super()._checkpoint()
        trims = self._erase(self.captured) if any(isinstance(effect, CaptureState) for effect in effects) else []
        return [*effects, *trims]


class TakesNoCheckpoint(_WithoutInvariants):
    """The log is never trimmed."""

    def _checkpoint(self) -> list[Effect]:
        return []


def _without_replay(failure: Failure) -> RecoveryPlan:
    plain = plan(failure)
    return replace(plain, parts={name: replace(part, replay=()) for name, part in plain.parts.items()})


class Forgetful(_WithoutInvariants):
    """Begins at once, for `NO_REPLAY`."""

    def _on_start(self, event: object) -> list[Effect]:
        self._replays = 0
        return [self._set_timer(), *self._go_on()]


DELIVERS_BEFORE_IT_IS_STORED = replace(PROTOCOL, worker=DeliversBeforeItIsStored)
DOES_NOT_DEDUPE = replace(PROTOCOL, worker=DoesNotDedupe)
DROPS_REPETITIONS_AT_ONCE = replace(PROTOCOL, worker=DropsRepetitionsAtOnce)
TRIMS_TOO_EARLY = replace(PROTOCOL, worker=TrimsTooEarly)
TAKES_NO_CHECKPOINT = replace(PROTOCOL, worker=TakesNoCheckpoint)
NO_REPLAY = replace(PROTOCOL, worker=Forgetful, plan=_without_replay)
SHOWS_WHAT_IT_REPLAYS = replace(PROTOCOL, worker=ShowsWhatItReplays)
SHOWS_WHAT_IT_DELIVERS = replace(PROTOCOL, worker=ShowsWhatItDelivers)
