"""The dependency graph of a rewind: queries and tables with their points, and the channels between them.

Each point carries the reason why it can no longer be restored, if there is one. The search for the line is that of
uncoordinated checkpoints (`checkpoint_protocols.checkpoints.recovery_line`). There, a query's batch is a checkpoint,
and so is a table's version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from checkpoint_protocols.checkpoints.recovery_line import NOTHING_KEPT, Candidate, Ends, Lost
from checkpoint_protocols.ids import ChannelId, ProcessId
from spark_ckpt.errors import CheckpointDamaged
from spark_rewind.connections import BEGINNING, Channel, Index, shrinking


@dataclass(frozen=True, slots=True)
class Point:
    """A state that a process can roll back to.

    - `at_ms`: time when the process reached it; None for an unfinished batch and for the beginning.
    - `gone`: reason why it no longer exists.
    - `lost`: the same, found by listing folders of the state.
    - `torn`: the same, found by opening files.

    The last two run only for points of a line and for later points that the line skips.
    """

    index: Index
    at_ms: int | None = None
    gone: str | None = None
    lost: Callable[[], str | None] = field(default=lambda: None, compare=False)
    torn: Callable[[], str | None] = field(default=lambda: None, compare=False)


Allowed = Callable[[ProcessId, Point], bool]
"""Predicate of a target: true for a point that it allows."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """Points of each process, oldest first (the newest is the current state), and the channels between processes."""

    points: Mapping[ProcessId, Sequence[Point]]
    channels: Mapping[ChannelId, Channel]

    @property
    def ends(self) -> Ends:
        """(writer, reader) of every channel."""
        return {name: (each.writer, each.reader) for name, each in self.channels.items()}

    @property
    def lost(self) -> Lost:
        """Channels that keep no copy: data that a table lost exists nowhere else."""
        return {name: NOTHING_KEPT for name, each in self.channels.items() if not each.kept}

    def candidates(self, process: ProcessId, allowed: Allowed, *, also_gone: bool) -> list[Candidate]:
        """Return the points of a process that a line may contain. `also_gone` includes points that no longer exist."""
        sent = {name: each.sent for name, each in self.channels.items() if each.writer == process}
        received = {name: each.received for name, each in self.channels.items() if each.reader == process}
        return [
            Candidate(point.index, _at(sent, point.index), _at(received, point.index))
            for point in self.points[process]
            if allowed(process, point) and (also_gone or point.gone is None)
        ]

    def point(self, process: ProcessId, index: Index) -> Point:
        """Return the point with an index."""
        return next(each for each in self.points[process] if each.index == index)

    def newest(self, process: ProcessId) -> Point:
        """Return the current state of a process."""
        return self.points[process][-1]


def check_order(channels: Sequence[Channel], points: Mapping[ProcessId, Sequence[Point]]) -> None:
    """Check that counts of sent and read data never decrease.

    Raises `CheckpointDamaged`: a topic or table was replaced under a query.
    """
    for each in channels:
        for process, counts in ((each.writer, each.sent), (each.reader, each.received)):
            # The search for the line only goes back, which needs counts that never fall.
            if shrinking(counts[point.index] for point in points[process]):
                hint = "plan only with queries whose tables and topics are still those that they began with"
                what = f"{process} goes backwards in {each.what}: it was replaced, or an offset was changed by hand"
                raise CheckpointDamaged(what, hint=hint)


def _at(counts: Mapping[ChannelId, Mapping[Index, int]], index: Index) -> dict[ChannelId, int]:
    return {name: each[index] for name, each in counts.items()}


def named(index: Index, of_table: bool) -> str:
    """Return a point's name for a sentence."""
    if index is None:
        return "now"
    if index == BEGINNING:
        return "before its first version" if of_table else "the beginning"
    return f"version {index}" if of_table else f"batch {index}"
