"""Protocol between programs, on top of the epoch protocol of each: take an epoch now, these segments may come in, publish so far.

Pure. Programs are joined by edges, which carry rows of committed epochs only. `independent` (uncoordinated checkpoints)
asks for nothing. `index` is index-based checkpointing (Briatico, Ciuffoletti, Simoncini 1984; Manivannan, Singhal 1996), as
`checkpoint_protocols.checkpoints.index_based` has it for single messages:

    every tick       the index of the clock is newer than mine: take an epoch of that index
    a segment        is stamped with the index of the epoch before its own
    a later stamp    than my index: an epoch of that index first, then the segment               ("forced")
    nothing to save  my newest epoch serves the new index, too: one row in the log, no epoch     ("said")

`line-N` is the first epoch of each program that serves N. It is consistent for every N: the rows in a program's epoch have
stamps below N, so each sender had not reached N before it sent them. Clocks only make the epochs of a line coincide.

Two corrections to the machine for single messages. Late messages need no log, because the edge keeps them. A program that
had no index begins above every index that it has heard of: it may have read rows of any of these lines.

The driver and the planner of its edges host one instance each. The planner's only reads the program's own log, so a segment
comes in no earlier than the epoch before it is committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Between(StrEnum):
    """Protocols between programs."""

    INDEPENDENT = "independent"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class TakeEpoch:
    """Take an epoch now. It serves `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class SayIndex:
    """Record in the log that the newest epoch, `epoch`, serves `index`, too."""

    epoch: int
    index: int


class StageProcess:
    """One program in the protocol between programs.

    - `every_ms`: time from one index of the clock to the next.
    - `epoch`, `index`: the newest committed epoch and the newest index that it serves; 0 for none.
    """

    def __init__(self, protocol: Between, every_ms: int, epoch: int = 0, index: int = 0) -> None:
        self.protocol = protocol
        self.every_ms = every_ms
        self.epoch = epoch
        self.index = index
        self._heard = 0
        self._asked = 0

    # -- what the host tells ------------------------------------------------------------------------------------------

    def heard(self, index: int) -> None:
        """Note the newest index of a sender."""
        self._heard = max(self._heard, index)

    def committed(self, epoch: int, index: int) -> None:
        """Note that the log has this epoch, or that its newest epoch serves this index."""
        self.epoch, self.index = max(self.epoch, epoch), max(self.index, index)

    # -- what it says -------------------------------------------------------------------------------------------------

    def wanted(self, now_ms: int, idle: bool) -> TakeEpoch | SayIndex | None:
        """Return what is to be done now.

        - `now_ms`: this host's wall clock, ms since 1970 UTC.
        - `idle`: nothing was read or sent since the newest epoch.

        Not to be called while an epoch is under way: that one takes the newest index when it is committed.
        """
        if self.protocol is Between.INDEPENDENT:
            return None
        index = self._next(now_ms)
        if index <= self.index:
            return None
        if idle and self.epoch:
            return SayIndex(self.epoch, index)
        if self._asked > self.index:
            return None  # asked already: sinks that are behind may delay the epoch
        self._asked = index
        return TakeEpoch(index)

    def index_of_epoch(self, now_ms: int) -> int:
        """Return the index of an epoch that is committed now; 0 without an index.

        Every index up to the newest known is valid: what came in since the epoch's barrier has an older stamp.
        """
        return 0 if self.protocol is Between.INDEPENDENT else max(self.index, self._next(now_ms))

    def lets_in(self, stamp: int) -> bool:
        """Return True if a segment with this stamp may come in now. A segment without a stamp has 0."""
        return self.protocol is Between.INDEPENDENT or stamp <= self.index

    @property
    def publishes_up_to(self) -> int:
        """Newest epoch that sinks may publish: no protocol over committed edges ever undoes a committed epoch."""
        return self.epoch

    def _next(self, now_ms: int) -> int:
        # In seconds, so that programs with different intervals speak of the same moments.
        tick = now_ms // self.every_ms * self.every_ms // 1000
        # A program without an index may have read rows of every line up to the newest that it has heard of.
        return max(self._heard if self.index else self._heard + 1, tick)
