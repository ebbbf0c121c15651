"""The markers protocol, or one that replays, with one planted bug each, and the oracle that must find it."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_lab import GRAPHS, ScheduleOutcome, run
from checkpoint_protocols.graph import COORDINATOR
from checkpoint_protocols.ids import Epoch, TimerId
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.message_logging import synchronous_logging
from checkpoint_protocols.recovery import Failure, Needs, Part, Protocol, RecoveryPlan, checkpoint_key
from checkpoint_protocols.vocabulary import (
    AppSent,
    CaptureState,
    CheckpointKind,
    Commanded,
    Deliver,
    Drop,
    Erase,
    Hold,
    Note,
    Received,
    SetTimer,
    SinkTransaction,
    Stored,
    TimerElapsed,
)
from tests.simulator import markers
from tests.simulator.eager import run_long


class CapturesTheLastMarker(markers.Worker):
    """Erratum E3: the state of the last marker instead of the first."""

    def _begin(self, index: int) -> list[Effect]:
        return [effect for effect in super()._begin(index) if not isinstance(effect, CaptureState)]

    def _finish(self) -> list[Effect]:
        if self.recording or self.open is None:
            return []
        self.open = dict(self.record())
        return [CaptureState(Epoch(self.index), CheckpointKind.BASIC), *super()._finish()]


class RecordsNothing(markers.Worker):
    def _on_received(self, event: Received) -> list[Effect]:
        self.captured = []
        return super()._on_received(event)


class DeliversReplaysTwice(markers.Worker):
    def _on_received(self, event: Received) -> list[Effect]:
        effects = super()._on_received(event)
        return [*effects, *effects] if event.replayed else effects


class ForgetsReplays(markers.Worker):
    def _on_received(self, event: Received) -> list[Effect]:
        return [] if event.replayed else super()._on_received(event)


class HearsTheDead(markers.Worker):
    """Delivers messages of undone incarnations."""

    def _door(self, event: Event) -> list[Effect] | None:
        return None


class NumbersAgain(markers.Worker):
    """Numbers every message as the first."""

    def _on_sent(self, event: AppSent) -> list[Effect]:
        self.sent = {}
        return super()._on_sent(event)


class CapturesAgain(markers.Worker):
    def _begin(self, index: int) -> list[Effect]:
        again: list[Effect] = [CaptureState(Epoch(index), CheckpointKind.BASIC)]
        return [*super()._begin(index), *again]


class NeverReleases(markers.Worker):
    def _begin(self, index: int) -> list[Effect]:
        return [*super()._begin(index), *(Hold(channel) for channel in self.graph.inputs[self.me])]


class AsksForEver(markers.Worker):
    """A timeout that only sets itself again."""

    TABLE = {**markers.Worker.TABLE, (markers.Phase.RUNNING, TimerElapsed): "_on_timeout"}  # noqa: RUF012

    def _on_start(self, event: Commanded) -> list[Effect]:
        return self._on_timeout(TimerElapsed("ask", TimerId(0), 0))

    def _on_timeout(self, event: TimerElapsed) -> list[Effect]:
        again = replace(event, timer=TimerId(event.timer + 1))
        return [SetTimer("ask", 100, again.timer, again)]


class ShowsWhatItHas(markers.Worker):
    """Publishes rows as they come, without a checkpoint."""

    def _on_received(self, event: Received) -> list[Effect]:
        effects = super()._on_received(event)
        if self.graph.outputs[self.me] or not any(isinstance(effect, Deliver) for effect in effects):
            return effects
        return [*effects, SinkTransaction("now", self.delivered - 1, self.delivered)]


class ErasesTheCommitted(markers.Worker):
    """Keeps only the newest checkpoint, which is not committed yet."""

    def _on_stored(self, event: Stored) -> list[Effect]:
        index = int(event.token.split()[1])
        return [*super()._on_stored(event), Erase(tuple(checkpoint_key(older) for older in range(1, index)))]


class DropsTheThird(synchronous_logging.LoggingWorker):
    """The last message of a channel is dropped. A protocol that replays is judged at the end only."""

    def _on_received(self, event: Received) -> list[Effect]:
        return [Drop(event, "lost")] if event.message.seq == 3 else super()._on_received(event)


class CommitsAtOnce(markers.Coordinator):
    """Commits after the first report."""

    def _on_received(self, event: Received) -> list[Effect]:
        return self._commit() if event.message.index == self.open else []


class NeverHearsTheLast(markers.Coordinator):
    """Waits for one report more than there are processes: no process is blocked, and no snapshot completes."""

    def _on_received(self, event: Received) -> list[Effect]:
        return []


class SaysSoBeforeItIsDurable(markers.Coordinator):
    def _commit(self) -> list[Effect]:
        return [Note("complete", str(self.open)), *super()._commit()]


def plan_without_looking(failure: Failure) -> RecoveryPlan:
    """Restores a committed number, even if its records are missing."""
    index = max((int(key[1]) for key in failure.records[COORDINATOR] if key[0] == "commit"), default=0)
    part = Part(checkpoint_key(index)) if index else Part(None, initial=True)
    return RecoveryPlan(failure.incarnation, Epoch(index), dict.fromkeys(failure.graph.processes, part))


def plan_timidly(failure: Failure) -> RecoveryPlan:
    """Always restarts from the initial state, with a row of zeros that other oracles accept."""
    row = dict.fromkeys(failure.graph.processes, Epoch(0))
    return RecoveryPlan(failure.incarnation, row, dict.fromkeys(failure.graph.processes, Part(None, initial=True)))


def plan_worse_every_time(failure: Failure) -> RecoveryPlan:
    """Restores the newest commit the first time, and the initial state after two commits."""
    commits = [key for key in failure.records[COORDINATOR] if key[0] == "commit"]
    return plan_timidly(failure) if len(commits) > 1 else markers.plan(failure)


PLANTED: list[tuple[Protocol, str, str]] = [
    (markers.protocol(fifo=False), "diamond", "O1"),
    (markers.protocol(worker=CapturesTheLastMarker), "diamond", "O1"),
    (markers.protocol(worker=RecordsNothing), "cycle", "O2"),
    (markers.protocol(worker=ForgetsReplays), "cycle", "O2"),
    (replace(synchronous_logging.PROTOCOL, worker=DropsTheThird), "pair", "O2"),
    (markers.protocol(worker=DeliversReplaysTwice), "cycle", "O3"),
    (replace(markers.protocol(), plan=plan_timidly, maximal=True), "pipeline", "O4"),
    (replace(markers.protocol(), plan=plan_worse_every_time), "pipeline", "O5"),
    (replace(markers.protocol(coordinator=CommitsAtOnce), plan=plan_without_looking), "diamond", "O6"),
    (markers.protocol(coordinator=CommitsAtOnce), "diamond", "O7"),
    (markers.protocol(coordinator=SaysSoBeforeItIsDurable), "pipeline", "O7"),
    (markers.protocol(worker=NumbersAgain), "pipeline", "O8"),
    (markers.protocol(worker=CapturesAgain), "pipeline", "O8"),
    (markers.protocol(worker=HearsTheDead), "diamond", "O9"),
    (markers.protocol(worker=NeverReleases), "pipeline", "O10"),
    (markers.protocol(worker=AsksForEver), "pair", "O10"),
    (markers.protocol(coordinator=NeverHearsTheLast), "pair", "O10"),
    (markers.protocol(worker=ShowsWhatItHas), "pipeline", "O11"),
    (markers.protocol(worker=ErasesTheCommitted), "pipeline", "O12"),
    (replace(markers.protocol(), needs=Needs(reliable=False)), "pipeline", "O2"),
]


def either(protocol: Protocol, graph: str, seed: int) -> ScheduleOutcome:
    """One schedule; long and usual ones take turns."""
    return (run if seed % 2 else run_long)(protocol, GRAPHS[graph], seed)
