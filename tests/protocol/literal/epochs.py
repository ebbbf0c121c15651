"""Epochs and deficits as seed 000 has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.recovery import Record
from checkpoint_protocols.snapshots.coordinator import Open
from checkpoint_protocols.snapshots.epochs import PROTOCOL, EpochCoordinator, EpochWorker


class ZeroIsEnough(EpochCoordinator):
    """E1: "when the total deficit hits zero, we can be sure that the checkpoint is complete"."""

    def _complete(self, opened: Open) -> bool:
        return opened.balance == 0


class OnlyOneIsAsked(EpochCoordinator):
    """E1: the coordinator checkpoints "itself", all others learn of it from messages, which other sources never get."""

    def asked(self) -> Iterable[ProcessId]:
        return self.graph.sources[:1]


class CountsAreForgotten(EpochWorker):
    """E1: the counts are not part of the checkpoint."""

    def record(self) -> Record:
        return {**super().record(), "balance": {}}


ZERO_IS_ENOUGH = replace(PROTOCOL, coordinator=ZeroIsEnough)
ONLY_ONE_IS_ASKED = replace(PROTOCOL, coordinator=OnlyOneIsAsked)
COUNTS_ARE_FORGOTTEN = replace(PROTOCOL, worker=CountsAreForgotten)
