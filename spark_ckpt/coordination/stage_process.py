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

`aligned` and `unaligned` are for the stages of one program. Both have one decision of all of them: line N is decided once
every stage serves N, and sinks publish up to the newest decided line, only. The decision is read from the logs of the
stages and needs no row of its own, since no crash undoes a committed epoch.

    unaligned        epochs as with `index`: before the first segment of a later index. Rows in flight are positions on
                     edges, the deficit of a stage is their difference, and a slow stage delays no epoch.
    aligned          a stage serves N once it has read, in a committed epoch, all that its senders sent before N, and
                     nothing after: inputs that are ahead wait. So a line has nothing in flight.

The driver and the planner of its edges host one instance each. The planner's only reads the program's own log, so a segment
comes in no earlier than the epoch before it is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from checkpoint_protocols.machine import Effect, Event


class Between(StrEnum):
    """Protocols between programs."""

    INDEPENDENT = "independent"
    INDEX = "index"
    UNALIGNED = "unaligned"
    ALIGNED = "aligned"

    @property
    def indexed(self) -> bool:
        """True if epochs serve an index."""
        return self is not Between.INDEPENDENT

    @property
    def decides_lines(self) -> bool:
        """True if sinks publish decided lines only: the protocol is for the stages of one program."""
        return self in (Between.UNALIGNED, Between.ALIGNED)


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogsRead(Event):
    """The logs of other programs were read.

    - `stamp`: the newest index of a sender.
    - `stages`: the newest index of each stage's log, the own one included; empty if one of them could not be read.
    - `reached`: index up to which the newest epoch has read all inputs, as `epochs.readers.reached_index` has it.
    - `arriving`: the same of what is read now.
    - `idle`: nothing was read or sent since the newest epoch.
    - `under_way`: an epoch is under way. It takes the newest index when it is committed.
    """

    stamp: int
    stages: tuple[int, ...]
    reached: int
    arriving: int
    idle: bool
    under_way: bool


@dataclass(frozen=True, slots=True)
class EpochEnding(Event):
    """An epoch is about to be committed."""


@dataclass(frozen=True, slots=True)
class EpochServes(Event):
    """The log has an epoch with this index, or says that its newest epoch serves it."""

    epoch: int
    index: int


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StampEpoch(Effect):
    """Commit the epoch with this index; 0 without an index."""

    index: int


@dataclass(frozen=True, slots=True)
class ReleaseEpochs(Effect):
    """Let sinks publish up to `epoch`, that of the newest decided line."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TakeEpoch(Effect):
    """Take an epoch now. It serves `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class SayIndex(Effect):
    """Record in the log that the newest epoch, `epoch`, serves `index`, too."""

    epoch: int
    index: int


class StageProcess:
    """One program, or stage of a program, in the protocol between them.

    - `every_ms`: time from one index of the clock to the next.
    - `epoch`, `index`: the newest committed epoch and the newest index that it serves; 0 for none.
    - `reads`: True if the program reads edges.
    - `served`: earlier epochs with the newest index that each serves, oldest first.
    - `heard`: the newest index of a sender.
    """

    def __init__(
        self,
        protocol: Between,
        every_ms: int,
        epoch: int = 0,
        index: int = 0,
        reads: bool = False,
        served: Sequence[tuple[int, int]] = (),
        heard: int = 0,
    ) -> None:
        self.protocol = protocol
        self.every_ms = every_ms
        self.epoch = epoch
        self.index = index
        # A stage that reads no edge has nothing to align: its clock leads.
        self.waits_for_inputs = protocol is Between.ALIGNED and reads
        self.asked = 0
        """Newest index for which an epoch was requested."""
        self.decided = 0
        """Newest line that every stage serves."""
        self.released = 0
        """Epoch up to which sinks were last allowed to publish."""
        self.newest_heard = heard
        self.served = dict([*served, (epoch, index)])
        self.risen_ms: int | None = None
        """Time at which the index rose, or at which this process began; None before its first event."""

    def handle(self, event: Event, now_ms: float) -> list[Effect]:
        """Return what is to be done, in order. `now_ms`: this host's wall clock, ms since 1970 UTC."""
        now = int(now_ms)
        self.risen_ms = now if self.risen_ms is None else self.risen_ms
        match event:
            case LogsRead():
                return self.on_logs_read(event, now)
            case EpochEnding():
                return [StampEpoch(self.index_of_epoch(now))]
            case EpochServes(epoch=epoch, index=index):
                self.risen_ms = now if index > self.index else self.risen_ms
                self.committed(epoch, index)
                return []
        raise TypeError(f"{type(event).__name__} is no event of the protocol between programs")

    def on_logs_read(self, event: LogsRead, now_ms: int) -> list[Effect]:
        """Release the epochs of a newly decided line, then ask for what the newest index needs."""
        self.heard(event.stamp)
        effects: list[Effect] = []
        if event.stages and self.protocol.decides_lines:
            self.decide(event.stages)
            if (epoch := self.publishes_up_to) != self.released:
                self.released = epoch
                effects.append(ReleaseEpochs(epoch))
        wanted = None if event.under_way else self.wanted(now_ms, event.idle, event.reached, event.arriving)
        return effects if wanted is None else [*effects, wanted]

    # -- what the host tells ------------------------------------------------------------------------------------------

    def heard(self, index: int) -> None:
        """Note the newest index of a sender."""
        self.newest_heard = max(self.newest_heard, index)

    def committed(self, epoch: int, index: int) -> None:
        """Note that the log has this epoch, or that its newest epoch serves this index."""
        # The host may tell of a row of the log late, after a newer one.
        self.epoch, self.index = max(self.epoch, epoch), max(self.index, index)
        self.served[epoch] = self.index

    def decide(self, indices: Collection[int]) -> None:
        """Note the newest index of every stage's log, the own one included: the line that all of them serve is decided."""
        # A stage whose log was read before its newest row has a lower index: a decided line stays decided.
        self.decided = max(self.decided, min(indices))
        line = self.publishes_up_to
        # Lines are decided in order, so no epoch before this one can be the first of a later line.
        self.served = {epoch: index for epoch, index in self.served.items() if epoch >= line}

    # -- what it says -------------------------------------------------------------------------------------------------

    def wanted(self, now_ms: int, idle: bool, reached: int = 0, arriving: int = 0) -> TakeEpoch | SayIndex | None:
        """Return what is to be done now; parameters as in `LogsRead`. Not for the time that an epoch is under way."""
        if self.protocol is Between.INDEPENDENT:
            return None
        if self.waits_for_inputs:
            return self.align(reached, 0 if idle else arriving)
        index = self.next_index(now_ms)
        if index <= self.index:
            return None
        if idle and self.epoch:  # without an epoch there is none that could serve it
            return SayIndex(self.epoch, index)
        if self.asked > self.index:
            return None  # asked already: sinks that are behind may delay the epoch
        self.asked = index
        return TakeEpoch(index)

    def index_of_epoch(self, now_ms: int) -> int:
        """Return the index of an epoch that is committed now; 0 without an index.

        Every index up to the newest known is valid: what came in since the epoch's barrier has an older stamp.
        """
        if self.protocol is Between.INDEPENDENT:
            return 0
        # An aligned reader says its index of an epoch that it knows to have read everything.
        return self.index if self.waits_for_inputs else max(self.index, self.next_index(now_ms))

    def lets_in(self, stamp: int) -> bool:
        """Return True if a segment with this stamp may come in now. A segment without a stamp has 0."""
        # Rows with a later stamp come after a line that this program has not reached: its epoch comes first.
        return self.protocol is Between.INDEPENDENT or stamp <= self.index

    @property
    def publishes_up_to(self) -> int:
        """Newest epoch that sinks may publish: the newest one, or that of the newest decided line."""
        if not self.protocol.decides_lines:
            return self.epoch  # no protocol over committed edges ever undoes a committed epoch
        lines = (epoch for epoch, index in sorted(self.served.items()) if self.decided and index >= self.decided)
        return next(lines, 0)

    def align(self, reached: int, arriving: int) -> TakeEpoch | SayIndex | None:
        """Return the step of an aligned reader. Parameters as in `wanted`; `arriving` is 0 if there is nothing to save."""
        # Only a committed epoch counts: an open one may have been cut before the last rows came in.
        if reached > self.index and self.epoch:
            return SayIndex(self.epoch, reached)
        # The line is served already, or its epoch is on its way.
        if arriving <= max(self.index, self.asked):
            return None
        self.asked = arriving
        return TakeEpoch(arriving)

    def next_index(self, now_ms: int) -> int:
        """Return the newest index that this program knows: by its clock, or of its senders."""
        # In seconds, so that programs with different intervals speak of the same moments.
        tick = now_ms // self.every_ms * self.every_ms // 1000
        # A clock that was set forward and back leaves an index of the future. Without such steps no line would follow until
        # that time, and sinks that wait for decided lines would publish nothing.
        if tick < self.index and self.risen_ms is not None and not 0 <= now_ms - self.risen_ms < self.every_ms:
            tick = self.index + 1
        # A program without an index may have read rows of every line up to the newest that it has heard of.
        return max(self.newest_heard if self.index else self.newest_heard + 1, tick)
