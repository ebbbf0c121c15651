"""Algorithm 1 of seed 003, line by line."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.snapshots.acyclic import PROTOCOL, SnapshotTask
from checkpoint_protocols.vocabulary import Received


class NoIds(SnapshotTask):
    """E5 without loops: barriers of two snapshots are the same barrier, and no snapshot is ever aborted."""

    def validate(self) -> None:
        """Off."""

    def _stale(self, event: Event) -> str | None:
        return None

    def _make_way(self, number: int) -> list[Effect]:
        return []

    def _on_abort(self, event: Received) -> list[Effect]:
        return []


class NilIsAnInput(SnapshotTask):
    """E4: a source waits for a barrier of every input, and Nil is an input that never gets one (line 7)."""

    def _on_begin(self, event: Received) -> list[Effect]:
        blocked: set[ChannelId] = set()
        return super()._on_begin(event) if blocked == {*self.regular, ChannelId("Nil")} else []


NO_IDS = replace(PROTOCOL, worker=NoIds)
NIL_IS_AN_INPUT = replace(PROTOCOL, worker=NilIsAnInput)
