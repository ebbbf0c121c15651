"""Receipts of one process in asynchronous logging: in memory, in batches on disk, after a checkpoint.

A process is rebuilt to interval k from a checkpoint j <= k and the receipts j+1 to k. A batch may extend over the line
of a recovery: its beginning is valid, its end is undone. So each receipt is judged by itself.

A host may take several receipts in one batch, and send what follows from them at its end. The end of a batch is a
determinant like the order of receipts: sends are numbered by it. So receipts say where batches ended, and a process is
rebuilt only to the end of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from checkpoint_protocols.ids import Epoch, Incarnation, ProcessId
from checkpoint_protocols.incarnation import Age, RollbackTable, age
from checkpoint_protocols.record_fields import as_counts, by_process, items, mapping, number
from checkpoint_protocols.recovery import Key, Record, Records, checkpoint_key, checkpoints
from checkpoint_protocols.vocabulary import MORE, Envelope, Json

# -- The recovery vector: the recoverable interval of each process, advanced as intervals become stable.
#
# Seed 004, `find_recoverable`; Johnson and Zwaenepoel 1990. An interval of a process is its work between two receipts. It
# is stable when a checkpoint and the log can rebuild it. Its direct dependency vector (DDV) names, per sender, the newest
# interval received from. The `while` below follows indirect dependencies.
#
#     find(p, k)     k <= RV[p]: it is included already
#                    T = RV; T[p] = k; Max = the larger of T and DDV(p, k), for every process
#                    while Max[q] > T[q] for some q:  l = least stable interval of q with l >= Max[q], or fail
#                                                     T[q] = l; Max = the larger of Max and DDV(q, l)
#                    RV = T
#
# Corrected (E9):
#
# - `DDV(p, q)[q]` must be `DDV(p, k)[q]`, and `stable(l)` is of q.
# - The guard keeps RV from moving back if notices arrive out of order.
# - Failed attempts wait in the bin and are tried again until a pass changes nothing.
# - Interval 0 is stable.
#
# l is the least on purpose: a later one may depend on more. The lines form a lattice, so RV is the greatest of all.


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
        # Notices overtake each other. Without this guard an older one would move RV back (E9).
        if interval <= self.of(process):
            return True
        tried = {**self.rv, process: interval}
        wanted = dict(tried)
        # E9: the vector of the tried interval, `DDV(p, k)`. The seed's `DDV(p, q)` accepts vectors with orphans.
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
        for process, reached in self.rv.items():
            stable = self._stable[process]
            # A search only looks for intervals above RV.
            self._stable[process] = {k: ddv for k, ddv in stable.items() if k > reached}


def _raise(wanted: dict[ProcessId, int], ddv: Ddv) -> None:
    for process, interval in ddv.items():
        wanted[process] = max(wanted.get(process, 0), interval)


LOG = "log"
RECEIVED_IN = "received_in"
"""Header of a replayed message: the incarnation in which it was received first."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The receipt that began `interval`, in the incarnation `received_in`; `ddv` is the process's vector after it.

    `more`: the batch continued after it, so nothing was sent in this interval and no recovery may stop in it.
    """

    interval: int
    received_in: int
    ddv: Ddv
    message: Envelope
    more: bool = False

    def as_record(self) -> Json:
        """Return the receipt as JSON."""
        return [self.interval, self.received_in, as_counts(self.ddv), self.message.as_record(), self.more]

    @classmethod
    def of(cls, record: Json) -> Receipt:
        """Return the receipt that `as_record` wrote."""
        interval, received_in, ddv, message, more = items(record)
        return cls(number(interval), number(received_in), by_process(ddv), Envelope.of(mapping(message)), bool(more))

    def for_replay(self) -> Envelope:
        """Return the message with the incarnation in which its sends are numbered, and whether its batch ends with it."""
        return replace(self.message, header={**self.message.header, RECEIVED_IN: self.received_in, MORE: self.more})


@dataclass(slots=True)
class Rebuildable:
    """Intervals that one process can be rebuilt to, from its checkpoints and receipts."""

    checkpoints: dict[int, Record] = field(default_factory=dict)
    receipts: dict[int, Receipt] = field(default_factory=dict)

    @property
    def intervals(self) -> dict[int, Ddv]:
        """Vector of each interval with a checkpoint, or that ends a batch with receipts from one on without a gap.

        0 is the initial state.
        """
        found: dict[int, Ddv] = {0: {}, **{k: by_process(record["ddv"]) for k, record in self.checkpoints.items()}}
        reached = set(found)
        for interval, receipt in sorted(self.receipts.items()):
            if interval - 1 in reached:
                reached.add(interval)
                # In the middle of a batch nothing was sent, and the host cannot stop there: its sends are numbered at the
                # batch's end.
                if not receipt.more:
                    found[interval] = receipt.ddv
        return dict(sorted(found.items()))

    def base_of(self, interval: int) -> int:
        """Return the checkpoint to rebuild the interval from; 0 is the initial state."""
        return max((k for k in self.checkpoints if k <= interval), default=0)

    def replay_to(self, interval: int) -> tuple[Envelope, ...]:
        """Return the messages to deliver again after `base_of`, up to the interval."""
        receipts = range(self.base_of(interval) + 1, interval + 1)
        return tuple(self.receipts[k].for_replay() for k in receipts)

    def add(self, receipts: Iterable[Receipt]) -> None:
        """Add receipts, as those of a survivor's memory."""
        self.receipts.update({receipt.interval: receipt for receipt in receipts})


def rebuildable(process: ProcessId, records: Records, now: Incarnation, table: RollbackTable) -> Rebuildable:
    """Return the durable intervals of `process` that are not undone."""

    def stands(record: Record, interval: int) -> bool:
        written = Incarnation(number(record["incarnation"]))
        return age(process, written, Epoch(interval), now, table) is not Age.UNDONE

    found = Rebuildable()
    for record in checkpoints(records).values():
        if stands(record, number(record["index"])):
            found.checkpoints[number(record["index"])] = record
    batches = [record for key, record in records.items() if key[0] == LOG]
    # A later incarnation may have logged an interval again; its receipt replaces the older one.
    for record in sorted(batches, key=lambda record: number(record["incarnation"])):
        found.add(receipt for receipt in receipts_in(record) if stands(record, receipt.interval))
    return found


def receipts_in(record: Record) -> list[Receipt]:
    """Return the receipts of a batch, or of a survivor's current record."""
    return [Receipt.of(each) for each in items(record["log"])]


def batch_key(first: int) -> Key:
    """Return the key of the batch that begins with that interval."""
    return (LOG, f"{first:012d}")


def batches_in(records: Records) -> dict[int, int]:
    """Return the last interval of every batch, by its first."""
    batches = [receipts_in(record) for key, record in records.items() if key[0] == LOG]
    return {batch[0].interval: batch[-1].interval for batch in batches}


def key_of(checkpoint: Record) -> Key:
    """Return the key of a checkpoint."""
    return checkpoint_key(number(checkpoint["position"]))
