"""The recovery vector: the recoverable interval of each process, advanced as intervals become stable.

Seed 004, `find_recoverable`; Johnson and Zwaenepoel 1990. An interval of a process is its work between two receipts. It
is stable when a checkpoint and the log can rebuild it. Its direct dependency vector (DDV) names, per sender, the newest
interval received from. The `while` below follows indirect dependencies.

    find(p, k)     k <= RV[p]: it is included already
                   T = RV; T[p] = k; Max = the larger of T and DDV(p, k), for every process
                   while Max[q] > T[q] for some q:  l = least stable interval of q with l >= Max[q], or fail
                                                    T[q] = l; Max = the larger of Max and DDV(q, l)
                   RV = T

Corrected (E9):

- `DDV(p, q)[q]` must be `DDV(p, k)[q]`, and `stable(l)` is of q.
- The guard keeps RV from moving back if notices arrive out of order.
- Failed attempts wait in the bin and are tried again until a pass changes nothing.
- Interval 0 is stable.

l is the least on purpose: a later one may depend on more. The lines form a lattice, so RV is the greatest of all.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint_protocols.ids import ProcessId

Ddv = Mapping[ProcessId, int]
"""Newest interval received from, per sender. A sender that is not named has sent nothing."""


class RecoveryVector:
    """RV, and the stable intervals that are not in it yet."""

    def __init__(self) -> None:
        self.rv: dict[ProcessId, int] = {}
        """Interval per process; not named: 0."""
        self.gdv: dict[ProcessId, Ddv] = {}
        """The vector of each process at RV: the seed's matrix."""
        self._stable: dict[ProcessId, dict[int, Ddv]] = {}
        self._bin: set[tuple[ProcessId, int]] = set()

    def add(self, process: ProcessId, interval: int, ddv: Ddv) -> None:
        """Record that the interval has become stable, and include all intervals that can be included now."""
        self._stable.setdefault(process, {})[interval] = ddv
        self._bin.add((process, interval))
        while self._include_one():
            pass
        self._forget()

    def of(self, process: ProcessId) -> int:
        """Return the newest recoverable interval of the process."""
        return self.rv.get(process, 0)

    @property
    def consistent(self) -> bool:
        """True if `GDV(p)[q] <= GDV(q)[q]`: no process has received a message that was sent after RV."""
        return all(k <= self.of(sender) for ddv in self.gdv.values() for sender, k in ddv.items())

    def _include_one(self) -> bool:
        for process, interval in sorted(self._bin):
            # One inclusion can make others possible, so the caller starts again after each.
            if self.find(process, interval):
                self._bin.discard((process, interval))
                return True
        return False

    def find(self, process: ProcessId, interval: int) -> bool:
        """Advance RV until it includes the interval. Return False, without a change, if stable intervals do not allow it."""
        if interval <= self.of(process):
            return True
        tried = {**self.rv, process: interval}
        wanted = dict(tried)
        _raise(wanted, self._stable[process][interval])
        while behind := [q for q, least in wanted.items() if least > tried.get(q, 0)]:
            q = behind[0]
            fitting = self._least_stable(q, wanted[q])
            if fitting is None:
                return False
            tried[q] = fitting
            _raise(wanted, self._stable[q][fitting])
        moved = {p: k for p, k in tried.items() if k != self.of(p)}
        self.gdv.update({p: self._stable[p][k] for p, k in moved.items()})
        self.rv = tried
        return True

    def _least_stable(self, process: ProcessId, least: int) -> int | None:
        return min((k for k in self._stable.get(process, ()) if k >= least), default=None)

    def _forget(self) -> None:
        """Drop stable intervals up to RV: they are never needed again."""
        for process, reached in self.rv.items():
            stable = self._stable[process]
            self._stable[process] = {k: ddv for k, ddv in stable.items() if k > reached}


def _raise(wanted: dict[ProcessId, int], ddv: Ddv) -> None:
    for process, interval in ddv.items():
        wanted[process] = max(wanted.get(process, 0), interval)
