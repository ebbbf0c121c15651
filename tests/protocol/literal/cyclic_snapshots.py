"""Algorithm 2 of seed 003, line by line."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.snapshots.cyclic import PROTOCOL, CyclicTask
from checkpoint_protocols.vocabulary import Hold, Received

NIL = ChannelId("Nil")


class NilIsMarked(CyclicTask):
    """E4: line 9 marks Nil; line 13 compares with the regular inputs, and a source has none."""

    def _on_begin(self, event: Received) -> list[Effect]:
        marked = {NIL}
        return super()._on_begin(event) if marked == self.regular else []


class OneSetForAll(CyclicTask):
    """E5: barriers without ids. While the loop is logged, line 12 blocks, and line 13 does not run a second time."""

    def validate(self) -> None:
        """Off."""

    def _stale(self, event: Event) -> str | None:
        return None

    def _on_barrier_while_logging(self, event: Received) -> list[Effect]:
        if event.channel in self.regular:
            return [Hold(event.channel)]
        self.awaited.discard(event.channel)
        self._update_phase()
        return self._close_log()

    def _on_abort(self, event: Received) -> list[Effect]:
        return []


class MakesNoWay(CyclicTask):
    """Counts the barrier of a newer snapshot with those of the older one, which stays open."""

    def _ensure(self, holds: bool, what: str) -> None:
        """Off."""

    def _make_way(self, number: int) -> list[Effect]:
        return self._drop_log(f"the barrier of {number} came") if self.awaited else []


class LogsOnMarkedBackEdges(CyclicTask):
    """E6: line 25 checks that the input is a back edge, and not that its barrier has arrived.

    The seed has no incarnations; rule G4 would drop those messages from the replay, as their sends are undone.
    """

    def _door(self, event: Event) -> list[Effect] | None:
        return None if isinstance(event, Received) and event.replayed else super()._door(event)

    def _on_logged_message(self, event: Received) -> list[Effect]:
        if event.channel in self.back:
            self.log.append(event.message)
        return self._deliver(event)


NIL_IS_MARKED = replace(PROTOCOL, worker=NilIsMarked)
ONE_SET_FOR_ALL = replace(PROTOCOL, worker=OneSetForAll)
LOGS_ON_MARKED_BACK_EDGES = replace(PROTOCOL, worker=LogsOnMarkedBackEdges)
MAKES_NO_WAY = replace(PROTOCOL, worker=MakesNoWay)
