"""Restoring every program to one moment of its own wall clock, and the rows that this would double or lose.

The counter-example of uncoordinated clocks (seed 000, `checkpoint_protocols.snapshots.wall_clock`) on the stores of real
programs. Each program alone goes back to its newest epoch of the moment. Clocks differ, and epochs are seconds apart, so a
reader may then have rows that its sender has not sent yet: the sender sends them again, and they count twice. The positions
in the manifests say how many. `Line` is the consistent answer for the same moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_ckpt.epochs.lines import Line, epochs_at, greatest
from spark_ckpt.epochs.records import Manifest, Position
from spark_ckpt.errors import UNREADABLE, EpochNotFound
from spark_ckpt.program_edges.following import position_of
from spark_ckpt.program_edges.line_stores import ProgramStore, StoreLines


@dataclass(frozen=True, slots=True)
class EdgeAtMoment:
    """Rows of one edge, with both programs at their newest epochs of the moment.

    - `doubled`: the reader has them, and the sender sends them again.
    - `in_transit`: sent and not read; the edge keeps them. A channel that keeps nothing would lose them.
    - `lost_epochs`: number of the sender's epochs that the reader has not read, and that are deleted or damaged.
    """

    sender: str
    reader: str
    edge: str
    doubled: int
    in_transit: int
    lost_epochs: int


@dataclass(frozen=True, slots=True)
class WallClockCut:
    """`epochs`: the newest of each program at the moment, 0 for none. `line`: the greatest consistent line within them."""

    epochs: Mapping[str, int]
    edges: tuple[EdgeAtMoment, ...]
    line: Line | None

    @property
    def doubled(self) -> int:
        """Return the rows that would count twice."""
        return sum(each.doubled for each in self.edges)

    @property
    def consistent(self) -> bool:
        """Return True if the moment is a line: nothing is doubled or lost."""
        return self.line is not None and self.line.epochs == self.epochs


def wall_clock_cut(known: StoreLines, moment_ms: int) -> WallClockCut:
    """Return the cut that the wall clocks make at a moment, in ms since 1970 UTC."""
    epochs = epochs_at(known.programs, moment_ms)
    try:
        line = greatest(known.programs, epochs)
    except EpochNotFound:
        line = None
    return WallClockCut(epochs, tuple(_edges(known, epochs)), line)


def _edges(known: StoreLines, epochs: Mapping[str, int]) -> Iterator[EdgeAtMoment]:
    for name, program in known.programs.items():
        at = next((each for each in known.stores[name].manifests if each.epoch == epochs[name]), None)
        for source, each in program.inputs.items():
            counted = _Counted(known.stores[each.sender], each.edge, epochs[each.sender])
            yield counted.read_up_to(name, _position(at, source))


def _position(manifest: Manifest | None, source: str) -> Position:
    cursors = manifest.cursors if manifest is not None else {}
    return position_of(cursors[source]) if source in cursors else Position()


@dataclass(frozen=True, slots=True)
class _Counted:
    """The rows of an edge whose sender is at epoch `sent_up_to`."""

    sender: ProgramStore
    edge: str
    sent_up_to: int

    def read_up_to(self, reader: str, position: Position) -> EdgeAtMoment:
        sent, read = self._branch(self.sent_up_to), self._branch(position.epoch)
        # An epoch that the log has forgotten: what is kept and older was read before it.
        read = read or {epoch for epoch in sent if epoch <= position.epoch}
        doubled = sum(self._rows(epoch, position, True) for epoch in read - sent)
        # A position within an epoch: the rest of its rows is in transit.
        partly = {position.epoch} & sent & read
        waiting = (sent - read) | partly
        in_transit = sum(self._rows(epoch, position, False) for epoch in waiting)
        oldest = self.sender.manifests[0].rows_before.get(self.edge, 0)
        whole = position.epoch if position.whole else position.epoch - 1
        # `oldest` is the newest epoch with rows that retention has deleted; the moment may lie before it.
        lost = max(0, min(oldest, self.sent_up_to) - whole)
        lost += sum(epoch > max(oldest, whole) for epoch in waiting & self.sender.damaged(self.edge))
        return EdgeAtMoment(self.sender.name, reader, self.edge, doubled, in_transit, lost)

    def _branch(self, epoch: int) -> set[int]:
        """Return the epochs that the log still knows, up to one."""
        known = self.sender.log_state
        return {brief.epoch for brief in known.lineage(epoch)} if epoch in known.by_id else set()

    def _rows(self, epoch: int, position: Position, read: bool) -> int:
        """Return the rows of an epoch that are read, or those that are not. 0 if its manifest is deleted or damaged."""
        store = self.sender.store
        try:
            files = store.staged(self.edge).staged(store.log.manifest(epoch))
        except UNREADABLE:
            return 0
        # The position is within one epoch at most; of the others all files are read, or none.
        begun = position.files if epoch == position.epoch else len(files) if read else 0
        return sum(file.rows for file in (files[:begun] if read else files[begun:]))
