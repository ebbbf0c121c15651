"""The interval dependency graph of uncoordinated checkpoints (seed 004, "Uncoordinated Checkpointing").

A node is the work of a process between two checkpoints. An edge says "if that is undone, so is this". Edges lead from
an interval to the next of its process. They also lead from the interval that *sent* a message to the one that received
it. The seed draws the second kind from receiver to sender. That is the edge for lost messages that cannot be sent
again; over channels that can be read again it does not exist (erratum E7).

Checkpoint k begins interval k; 0 is the initial state. Each process stores its own edges with every checkpoint: per
sender, the newest interval it has received from so far. Later intervals are undone with earlier ones, so the newest is
enough. It is counted from the beginning, so a checkpoint in between may be erased.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from checkpoint_protocols.ids import ProcessId

Node = tuple[ProcessId, int]
"""A process, and the checkpoint that begins the interval."""

Seen = Mapping[ProcessId, int]
"""Newest interval of each sender that the process received from."""

NOTHING_SEEN: Seen = {}


@dataclass(frozen=True, slots=True)
class Marks:
    """Known state of one process: `seen` at each of its checkpoints, oldest first, and the current one if known."""

    checkpoints: Mapping[int, Seen] = field(default_factory=lambda: {0: NOTHING_SEEN})
    now: Seen | None = None

    def begin_of(self, interval: int) -> int:
        """Return the newest kept checkpoint at or before `interval`; some in between may be erased."""
        return max(index for index in self.checkpoints if index <= interval)

    def intervals(self) -> Iterator[tuple[int, Seen, Seen]]:
        """Yield each interval with `seen` at its begin and its end. The last interval needs a known `now`."""
        states: Sequence[tuple[int, Seen]] = sorted(self.checkpoints.items())
        ends = [*(seen for _, seen in states[1:]), *(() if self.now is None else (self.now,))]
        for (index, before), after in zip(states, ends, strict=False):
            yield index, before, after


class IntervalGraph:
    """Dependencies between intervals. `edges` lead from a node to the nodes that are undone with it."""

    def __init__(self, marks: Mapping[ProcessId, Marks]) -> None:
        self.marks = marks
        self.edges: dict[Node, set[Node]] = {}
        for process, own in marks.items():
            self._connect(process, own)

    def undone(self, lost: Sequence[Node]) -> dict[ProcessId, int]:
        """Return the earliest interval per process that is reachable from the lost ones. A process not named keeps all."""
        reached, new = set(lost), list(lost)
        while new:
            for node in self.edges.get(new.pop(), ()):
                if node not in reached:
                    reached.add(node)
                    new.append(node)
        earliest: dict[ProcessId, int] = {}
        # In falling order, the last entry per process is its earliest interval.
        for process, index in sorted(reached, reverse=True):
            earliest[process] = index
        return earliest

    def needed(self) -> dict[ProcessId, set[int]]:
        """Return the checkpoints that some recovery can still need (Wang and Fuchs, theorem 3): the lines of all single
        failures.

        A failure loses the work of a process since its newest known checkpoint. An interval that other processes
        already received from, and whose end is not known here, is a loss of its own.
        """
        kept = {process: {0, max(own.checkpoints)} for process, own in self.marks.items()}
        for node in self._open():
            for process, index in self.undone([node]).items():
                if index in self.marks[process].checkpoints:
                    kept[process].add(index)
        return kept

    def _open(self) -> list[Node]:
        newest = {process: max(own.checkpoints) for process, own in self.marks.items()}
        known = {*newest.items(), *self.edges}
        return [(process, index) for process, index in known if index >= newest[process]]

    def _connect(self, process: ProcessId, own: Marks) -> None:
        for index, before, after in own.intervals():
            for sender, interval in after.items():
                if interval > before.get(sender, -1):
                    self._edge(self._node(sender, interval), (process, index))
        indices = sorted(own.checkpoints)
        for index, following in pairwise(indices):
            self._edge((process, index), (process, following))

    def _node(self, sender: ProcessId, interval: int) -> Node:
        """Return the node of an interval. Intervals after the newest known checkpoint stay distinct: later checkpoints
        may separate them.
        """
        own = self.marks[sender]
        return (sender, interval if interval > max(own.checkpoints) else own.begin_of(interval))

    def _edge(self, source: Node, target: Node) -> None:
        self.edges.setdefault(source, set()).add(target)
        process, index = source
        newest = max(self.marks[process].checkpoints)
        # Losing the work since the newest checkpoint loses each later interval, too.
        if index > newest:
            self.edges.setdefault((process, newest), set()).add(source)
