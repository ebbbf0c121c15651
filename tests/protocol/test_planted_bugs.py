"""The oracles see: each machine here has one wrong handler, and some schedule is condemned for it by name.

Invariants of the machines are switched off where they would see the bug first: what is tested is the outside
view. The literal variants are the published algorithms: T3 (erratum E2) and T4 (erratum E4).
"""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint_protocols import barrier as b
from checkpoint_protocols.ids import Epoch
from checkpoint_protocols.machine import Effect, Event, ProtocolViolation
from tests.protocol.barrier_runs import GRAPHS, run_long
from tests.protocol.literal.barrier import LiteralNil, SinksAreEnough


class BlindCoordinator(b.Coordinator):
    def validate(self) -> None:
        """Off."""


class BlindOperator(b.Operator):
    def validate(self) -> None:
        """Off."""


class BlindSink(b.SinkParticipant):
    def validate(self) -> None:
        """Off."""


class TasksAreEnough(BlindCoordinator):
    def _store_if_complete(self, opened: Any) -> list[Effect]:
        if not opened.tasks_missing:
            opened.sinks_missing.clear()
        return super()._store_if_complete(opened)


class ReusesAbortedIds(BlindCoordinator):
    def _abort(self, why: str) -> list[Effect]:
        effects = super()._abort(why)
        self._last_used = Epoch(self._last_used - 1)
        return effects


class AbortsWhatMayBeDecided(BlindCoordinator):
    """A timeout while the decision record is being written is taken for a no."""

    def _on_store_timeout(self, event: b.TimeoutElapsed) -> list[Effect]:
        return self._abort("the store is slow")


class PublishesBeforeItIsDecided(BlindCoordinator):
    def _store_if_complete(self, opened: Any) -> list[Effect]:
        effects = super()._store_if_complete(opened)
        commits = [b.CommitSink(sink, opened.epoch, self.incarnation) for sink in self.topology.sinks]
        return [*effects, *commits] if effects else []


class AcksBeforeItIsDurable(BlindOperator):
    def _take_snapshot(self, epoch: Epoch) -> list[Effect]:
        return [*super()._take_snapshot(epoch), b.AckSnapshot(self.task, epoch, self.incarnation)]


class CapturesAtTheFirstBarrier(BlindOperator):
    def _arrive(self, event: b.BarrierArrived) -> list[Effect]:
        return self._take_snapshot(event.epoch)


class ForwardsBeforeItCaptures(BlindOperator):
    """Rows let through between the two would be behind the barrier and inside the snapshot."""

    def _on_barrier(self, event: b.BarrierArrived) -> list[Effect]:
        forward = b.ForwardBarrier(event.epoch, self.incarnation)
        effects = super()._on_barrier(event)
        return [forward, *effects] if any(isinstance(effect, b.Hold) for effect in effects) else effects


class NeverReleasesAnAbandonedInput(BlindOperator):
    def _abandon(self, why: str) -> list[Effect]:
        held = set(self._held)
        effects = super()._abandon(why)
        self._held |= held
        return effects


class HearsOldLives(BlindOperator):
    """No incarnation filter: rows of a life that was rolled back are processed."""

    def _door(self, event: Event) -> list[Effect] | None:
        theirs = getattr(event, "incarnation", self.incarnation)
        return None if isinstance(event, b.RowsArrived) and theirs < self.incarnation else super()._door(event)


class TellsLivesApartByEpochOnly:
    """The door compares the number of the epoch: what an earlier life said of an epoch of that number is believed."""

    def _door(self: Any, event: Event) -> list[Effect] | None:
        theirs = getattr(event, "incarnation", self.incarnation)
        if theirs >= self.incarnation:
            return super()._door(event)  # type: ignore[misc]
        why = self._stale(event)
        return None if why is None else [b.Drop(event, why)]


class CoordinatorWithoutLives(TellsLivesApartByEpochOnly, BlindCoordinator):
    """Acks and votes of the epoch that died with the last driver count for the new one."""


class OperatorWithoutLives(TellsLivesApartByEpochOnly, BlindOperator):
    """A barrier of the epoch that died with the last driver cuts the new one's rows."""


class SinkWithoutLives(TellsLivesApartByEpochOnly, BlindSink):
    """What the last driver decided or gave up is done to the new one's rows."""


class StaysInTheOldLife(BlindOperator):
    """A newer incarnation's barriers and rows are taken without restoring first."""

    def _superseded(self, event: Event) -> list[Effect] | None:
        self.incarnation = getattr(event, "incarnation", self.incarnation)
        return None


class DecidesAlone(BlindSink):
    """In doubt after a crash it publishes whatever it had voted for."""

    def _on_doubt_resolved(self, event: b.DoubtResolved) -> list[Effect]:
        yes = b.DoubtResolved(event.epoch, event.prepared_in, event.incarnation, decided=True)
        return super()._on_doubt_resolved(yes)


class PresumesAbort(BlindSink):
    def _on_doubt_resolved(self, event: b.DoubtResolved) -> list[Effect]:
        no = b.DoubtResolved(event.epoch, event.prepared_in, event.incarnation, decided=False)
        return super()._on_doubt_resolved(no)


class VotesBeforeItIsDurable(BlindSink):
    def _prepare_waiting(self) -> list[Effect]:
        effects = super()._prepare_waiting()
        return [*effects, b.VoteYes(self.sink, self._undecided, self.incarnation)] if self._undecided else effects


class LosesAbortedRows(BlindSink):
    def _carry_over(self) -> list[Effect]:
        return [effect for effect in super()._carry_over() if not isinstance(effect, b.CarryOver)]


class PreparesWithoutKnowingTheLastFate(BlindSink):
    """Two transactions at once: the second votes although it may have to take over the first one's rows."""

    def _on_staged_early(self, event: b.StagedUpTo) -> list[Effect]:
        effects = super()._on_staged_early(event)
        return effects if self.phase is b.SinkPhase.RESOLVING else self._prepare_waiting()


PLANTED: list[tuple[str, type[Any], str]] = [
    ("coordinator", SinksAreEnough, "O7"),
    ("coordinator", TasksAreEnough, "O7"),
    ("coordinator", ReusesAbortedIds, "O8|captured twice|not allowed"),
    ("coordinator", AbortsWhatMayBeDecided, "the open epoch is|EpochStored|O2|O11"),
    ("coordinator", PublishesBeforeItIsDecided, "O11|without this sink's vote|owes no such"),
    ("operator", LiteralNil, "O10"),
    ("operator", AcksBeforeItIsDurable, "O6"),
    ("operator", CapturesAtTheFirstBarrier, "O1|O2"),
    ("operator", ForwardsBeforeItCaptures, "O1|O2|over here|captured twice"),
    ("operator", NeverReleasesAnAbandonedInput, "O10|O2|held"),
    ("operator", HearsOldLives, "O9"),
    ("coordinator", CoordinatorWithoutLives, "O9"),
    ("operator", OperatorWithoutLives, "O9"),
    ("sink", SinkWithoutLives, "O9"),
    ("operator", StaysInTheOldLife, "O1|O2|O6"),
    ("sink", DecidesAlone, "O11"),
    ("sink", PresumesAbort, "O11"),
    ("sink", VotesBeforeItIsDurable, "O6"),
    ("sink", LosesAbortedRows, "O2"),
    ("sink", PreparesWithoutKnowingTheLastFate, "O2|O11|O7|undecided|without this sink's vote"),
]


def verdict(role: str, machine: type[Any], seeds: int = 150) -> str:
    """The first complaint about some schedule, or nothing."""
    for seed in range(seeds):
        for graph in GRAPHS:
            try:
                run_long(graph, seed, {role: machine})
            except (AssertionError, ProtocolViolation) as complaint:
                return str(complaint).split("\n")[0]
    return ""


@pytest.mark.parametrize(("role", "machine", "expected"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_is_condemned(role: str, machine: type[Any], expected: str) -> None:
    complaint = verdict(role, machine)

    assert any(mark in complaint for mark in expected.split("|")), complaint or "nothing was found"


@pytest.mark.parametrize(
    ("role", "machine"), [("coordinator", BlindCoordinator), ("operator", BlindOperator), ("sink", BlindSink)]
)
def test_the_same_machines_without_a_bug_are_not(role: str, machine: type[Any]) -> None:
    assert verdict(role, machine, seeds=30) == ""
