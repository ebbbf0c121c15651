"""The interval dependency graph of uncoordinated checkpoints (seed 004, "Uncoordinated Checkpointing").

A node is what a process did between two checkpoints.  An edge says "if that is undone, so is this": from an
interval to the next of its process, and from the interval that *sent* a message to the one that received it.  The
seed draws the second kind from receiver to sender; that is the edge for messages that are lost because nobody can
send them again, and over channels that can be read again it does not exist (erratum E7).

Checkpoint k begins interval k; 0 is the initial state.  Each process stores its own edges: with every checkpoint,
per sender, the newest interval it has received from so far.  Because later intervals are undone with earlier ones, the
newest is enough; because it is counted from the beginning, a checkpoint in between may be erased.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from checkpoint_protocols.ids import ProcessId

Node = tuple[ProcessId, int]
"""Process, and the checkpoint that begins the interval."""

Seen = Mapping[ProcessId, int]
"""Newest interval of each sender that was received from."""

NOTHING_SEEN: Seen = {}


@dataclass(frozen=True, slots=True)
class Marks:
    """What is known of one process: `seen` at each of its checkpoints, oldest first, and maybe at now."""

    checkpoints: Mapping[int, Seen] = field(default_factory=lambda: {0: NOTHING_SEEN})
    now: Seen | None = None

    def begin_of(self, interval: int) -> int:
        """The checkpoint that begins what `interval` belongs to, where checkpoints in between are not kept."""
        return max(index for index in self.checkpoints if index <= interval)

    def intervals(self) -> Iterator[tuple[int, Seen, Seen]]:
        """Each interval with what was seen at its begin and at its end; the last only if there is a now."""
        states: Sequence[tuple[int, Seen]] = sorted(self.checkpoints.items())
        ends = [*(seen for _, seen in states[1:]), *(() if self.now is None else (self.now,))]
        for (index, before), after in zip(states, ends, strict=False):
            yield index, before, after


class IntervalGraph:
    """`edges`: from a node to those that are undone with it."""

    def __init__(self, marks: Mapping[ProcessId, Marks]) -> None:
        self.marks = marks
        self.edges: dict[Node, set[Node]] = {}
        for process, own in marks.items():
            self._connect(process, own)

    def undone(self, lost: Sequence[Node]) -> dict[ProcessId, int]:
        """Everything reachable from the lost intervals: the earliest per process. A process not named keeps all."""
        reached, new = set(lost), list(lost)
        while new:
            for node in self.edges.get(new.pop(), ()):
                if node not in reached:
                    reached.add(node)
                    new.append(node)
        earliest: dict[ProcessId, int] = {}
        for process, index in sorted(reached, reverse=True):
            earliest[process] = index
        return earliest

    def needed(self) -> dict[ProcessId, set[int]]:
        """Checkpoints that some recovery can still need (Wang and Fuchs, theorem 3): the lines of all single failures.

        What a process does from its newest known checkpoint on is the loss that each failure begins with.  Intervals
        that others have already received from, and whose end is not known here, are losses of their own.
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
        """Intervals behind the newest known checkpoint stay what they are: more checkpoints may part them."""
        own = self.marks[sender]
        return (sender, interval if interval > max(own.checkpoints) else own.begin_of(interval))

    def _edge(self, source: Node, target: Node) -> None:
        self.edges.setdefault(source, set()).add(target)
        process, index = source
        newest = max(self.marks[process].checkpoints)
        if index > newest:
            self.edges.setdefault((process, newest), set()).add(source)
