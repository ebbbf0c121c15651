"""`find_recoverable` as seed 004 prints it, one slip at a time."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.message_logging.asynchronous_logging import PROTOCOL, AsynchronousWorker, RecoveryCoordinator
from checkpoint_protocols.message_logging.volatile_log import RecoveryVector
from checkpoint_protocols.recovery import Birth, Protocol


class LiteralIndex(RecoveryVector):
    """E9: `Max[q] = max(TRV[q], DDV(p,q)[q])`: q, a process, is used as an interval of p."""

    def find(self, process: ProcessId, interval: int) -> bool:
        stable = self._stable[process]
        wanted = {
            q: vector.get(q, 0) for number, q in enumerate(sorted(self._stable), 1) if (vector := stable.get(number))
        }
        real, stable[interval] = stable[interval], wanted
        found = super().find(process, interval)
        self._stable[process][interval] = real
        self.gdv.update({process: real} if self.of(process) == interval else {})
        return found


class StableOfAnyProcess(RecoveryVector):
    """E9: `stable(l)` for `stable(q, l)`: an interval counts as stable if that number is stable at some process."""

    def _least_stable(self, process: ProcessId, least: int) -> int | None:
        found = min((k for known in self._stable.values() for k in known if k >= least), default=None)
        if found is not None:
            self._stable.setdefault(process, {}).setdefault(found, {})
        return found


class NewestThatFits(RecoveryVector):
    """The newest stable interval instead of the least one: it may depend on intervals that are not stable."""

    def _least_stable(self, process: ProcessId, least: int) -> int | None:
        return max((k for k in self._stable.get(process, ()) if k >= least), default=None)


class NoGuard(RecoveryVector):
    """E9: k is not compared with RV[p]."""

    def find(self, process: ProcessId, interval: int) -> bool:
        found = super().find(process, interval)
        if interval < self.of(process):
            self.rv = {**self.rv, process: interval}
        return found


class TakesWhatItBeganForDone(AsynchronousWorker):
    """An incarnation begins with nothing to save: the unfinished checkpoint of the last one counts as saved."""

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        self._saved_work = self._position()


class NoBin(RecoveryVector):
    """E9: the bin is in the prose only; an interval that fails is forgotten."""

    def _include_one(self) -> bool:
        tried, self._bin = self._bin, set()
        for process, interval in sorted(tried):
            self.find(process, interval)
        return False


def _with(vector: type[RecoveryVector]) -> Protocol:
    class Coordinator(RecoveryCoordinator):
        def __init__(self, birth: Birth) -> None:
            super().__init__(birth)
            self.vector = vector()

    return replace(PROTOCOL, coordinator=Coordinator, sound=False)


LITERAL_INDEX, NO_GUARD, NO_BIN = map(_with, (LiteralIndex, NoGuard, NoBin))
TAKES_WHAT_IT_BEGAN_FOR_DONE = replace(PROTOCOL, worker=TakesWhatItBeganForDone)
