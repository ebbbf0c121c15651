"""Partial recovery as section 5 of seed 003 sketches it."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_protocols.machine import Effect
from checkpoint_protocols.recovery import Birth, Record
from checkpoint_protocols.snapshots.partial_recovery import PROTOCOL, PartialTask
from checkpoint_protocols.vocabulary import Received


class _WithoutInvariants(PartialTask):
    def _ensure(self, holds: bool, what: str) -> None:
        """Off, so that only the oracles can find the bug."""


class SmallerThanTheLast(_WithoutInvariants):
    """E16: "records whose sequence number is smaller than that of the processed one" excludes the processed one."""

    def _is_known(self, event: Received) -> bool:
        return event.message.seq < self.received.get(event.channel, 0)


class SourceSequence(_WithoutInvariants):
    """E16: the source gives the number, and all records derived from one have the same."""

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self.last = dict((birth.checkpoint or {}).get("last", {}))

    def record(self) -> Record:
        return {**super().record(), "last": dict(self.last)}

    def _is_known(self, event: Received) -> bool:
        source, _, number = str(event.message.body).partition("#")[0].partition(">")[0].partition(".")
        key = f"{event.channel} {source}"
        known = int(number) <= self.last.get(key, -1)
        self.last[key] = max(int(number), self.last.get(key, -1))
        return known


class NoOrder(_WithoutInvariants):
    """E16: the seed does not say that a merge must repeat its order."""

    def _on_message(self, event: Received) -> list[Effect]:
        if self._is_known(event):
            return super()._on_message(event)
        return self._deliver(event)


SMALLER_THAN_THE_LAST = replace(PROTOCOL, worker=SmallerThanTheLast)
SOURCE_SEQUENCE = replace(PROTOCOL, worker=SourceSequence)
NO_ORDER = replace(PROTOCOL, worker=NoOrder)
