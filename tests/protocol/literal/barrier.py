"""Barriers as seeds 001 and 003 have them. Invariants of the machines are off: what is tested is the outside view."""

from __future__ import annotations

from typing import Any

from checkpoint_lab.barrier_world import Roles
from checkpoint_protocols import barrier as b
from checkpoint_protocols.machine import Effect


class SinksAreEnough(b.Coordinator):
    """T3, seed 001 as it is written: all sinks acked, so the checkpoint is committed."""

    def validate(self) -> None:
        """Off."""

    def _store_if_complete(self, opened: Any) -> list[Effect]:
        if not opened.sinks_missing:
            opened.tasks_missing.clear()
        return super()._store_if_complete(opened)


class LiteralNil(b.Operator):
    """T4, seed 003 as it is written: Nil is marked and compared with an empty set of regular inputs."""

    def validate(self) -> None:
        """Off."""

    def _arrive(self, event: b.BarrierArrived) -> list[Effect]:
        if event.channel == b.NIL and {event.channel} != self.inputs - {b.NIL}:
            return []
        return super()._arrive(event)


SINKS_ARE_ENOUGH: Roles = {"coordinator": SinksAreEnough}
