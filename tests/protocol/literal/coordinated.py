"""Coordinated checkpoints as seed 004 has them, without the additions of erratum E15, with one rule broken at a time."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_protocols.checkpoints.coordinated import PROTOCOL, CoordinatedPhase, CoordinatedWorker, Tentative
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.machine import Effect
from checkpoint_protocols.recovery import checkpoint_key
from checkpoint_protocols.vocabulary import AppSent, Erase, Note, Received


class _WithoutInvariants(CoordinatedWorker):
    def _ensure(self, holds: bool, what: str) -> None:
        """Off, so that only the oracles can find the bug."""


class NonBlocking(_WithoutInvariants):
    """E15: the seed does not forbid sends between the checkpoint and the decision."""

    TABLE = CoordinatedWorker.TABLE | {(phase, AppSent): "_on_sent" for phase in CoordinatedPhase}

    def _hold_sends(self) -> list[Effect]:
        return []


class OnePhase(_WithoutInvariants):
    """E15: "if not, they create a checkpoint": at once and for good, whether or not the others create theirs."""

    def _tentative_stored(self, index: int, ok: bool) -> list[Effect]:
        tentative = self.tentative
        if tentative is None or not ok:
            return super()._tentative_stored(index, ok)
        return [Note("complete", tentative.instance), *self._make(tentative)]

    def _undo_late(self, event: Received) -> list[Effect]:
        return []


class AsksNoSender(_WithoutInvariants):
    """The checkpoint depends on messages whose senders take none."""

    def _cohort(self) -> tuple[ProcessId, ...]:
        return ()


class AgreesWithoutACheckpoint(_WithoutInvariants):
    """A request never makes a checkpoint necessary, also after a send that the permanent one lacks."""

    def _is_needed(self, event: Received) -> bool:
        return False


class DecidesBeforeItIsStored(_WithoutInvariants):
    """G2: the decision is sent while its record is being written."""

    def _decide(self, tentative: Tentative) -> list[Effect]:
        stores = super()._decide(tentative)
        self.decided[tentative.instance] = {ProcessId(name) for name in tentative.participants}
        return [*stores, *self._announce(tentative.instance), *self._make(tentative)]

    def _decision_stored(self, index: int, ok: bool) -> list[Effect]:
        return []


class ErasesWithTheDecision(_WithoutInvariants):
    """GC: the older checkpoint is erased with the decision, not when this one is durable as permanent."""

    def _make(self, tentative: Tentative) -> list[Effect]:
        older, made = self.permanent, super()._make(tentative)
        return [Erase((checkpoint_key(older),)), Erase((checkpoint_key(tentative.index),)), *made]


class ForgetsTheDecision(_WithoutInvariants):
    """GC: the decision is erased when it is sent, not when all processes have marked their checkpoints."""

    def _finished(self, instance: str, participant: ProcessId) -> list[Effect]:
        self.decided.get(instance, set()).clear()
        return super()._finished(instance, participant)


class KeepsMarksThatWereOvertaken(_WithoutInvariants):
    """GC: checkpoints older than a mark are erased only when it is stored, not after a later mark or a restart."""

    def _mark_again(self) -> list[Effect]:
        return super()._mark_again() if self.permanent in self._unmarked else []

    def _marked(self, index: int, ok: bool) -> list[Effect]:
        newest, self.permanent = self.permanent, index
        effects = super()._marked(index, ok)
        self.permanent = newest
        return effects


class VotesBeforeItIsStored(_WithoutInvariants):
    """G2: votes for a checkpoint that is not durable."""

    def _take_tentative(self, instance: str, parent: ProcessId | None) -> list[Effect]:
        effects = super()._take_tentative(instance, parent)
        assert self.tentative is not None
        self.tentative.stored = True
        return [*effects, *self._when_all_voted(self.tentative)]

    def _tentative_stored(self, index: int, ok: bool) -> list[Effect]:
        return []


class ShowsEverything(_WithoutInvariants):
    """G6: a sink publishes all its rows, not only those of its permanent checkpoint."""

    def _show(self) -> list[Effect]:
        self.received_then = dict(self.received)
        return super()._show()


class JoinsAgain(_WithoutInvariants):
    """Joins an instance again that was aborted here: late aborts undo the second checkpoint."""

    def _is_new(self, instance: str) -> bool:
        return True


NON_BLOCKING = replace(PROTOCOL, worker=NonBlocking)
ASKS_NO_SENDER = replace(PROTOCOL, worker=AsksNoSender)
AGREES_WITHOUT_A_CHECKPOINT = replace(PROTOCOL, worker=AgreesWithoutACheckpoint)
ONE_PHASE = replace(PROTOCOL, worker=OnePhase)
DECIDES_BEFORE_IT_IS_STORED = replace(PROTOCOL, worker=DecidesBeforeItIsStored)
ERASES_WITH_THE_DECISION = replace(PROTOCOL, worker=ErasesWithTheDecision)
FORGETS_THE_DECISION = replace(PROTOCOL, worker=ForgetsTheDecision)
KEEPS_MARKS_THAT_WERE_OVERTAKEN = replace(PROTOCOL, worker=KeepsMarksThatWereOvertaken)
VOTES_BEFORE_IT_IS_STORED = replace(PROTOCOL, worker=VotesBeforeItIsStored)
SHOWS_EVERYTHING = replace(PROTOCOL, worker=ShowsEverything)
JOINS_AGAIN = replace(PROTOCOL, worker=JoinsAgain)
