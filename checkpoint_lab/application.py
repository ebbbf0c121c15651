"""The application under the protocols: every message is named by its source and by the path that it took.

Source `s` turns its input `k` into the record `s.k`. A process passes every record on to all its outputs, and the
record grows by the receiver's name: `s.0>a>k`. So the final state of every process is known without a run, for every
order of merges. A record leaves a loop after `loops` back edges.

`ordered` makes the order matter: a record carries a digest of everything that its sender took in before it
(`s.0>a#1a2b3c4d`). Two runs then agree only if every process took in the same records in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from zlib import crc32

from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import ChannelId, ProcessId

Outputs = tuple[tuple[ChannelId, str], ...]
"""Records that a process sends because of one record: channel and lineage."""


@dataclass(frozen=True)
class Application:
    """The workload of a graph, constant.

    `routes` maps a record to the records that follow from it, `expected` maps a process to its final state.
    """

    graph: Graph
    inputs: int
    loops: int = 1
    ordered: bool = False

    @cached_property
    def routes(self) -> dict[str, Outputs]:
        """Outputs by lineage, for every possible record."""
        found: dict[str, Outputs] = {}
        new = deque((source, f"{source}.{k}", 0) for source in self.graph.sources for k in range(self.inputs))
        while new:
            at, lineage, hops = new.popleft()
            ways = [(channel, hops + (channel in self.graph.back_edges)) for channel in self.ways(at, lineage)]
            # a record leaves a loop by taking no further back edge
            ways = [(channel, looped) for channel, looped in ways if looped <= self.loops]
            found[lineage] = tuple((channel, f"{lineage}>{self.graph.ends[channel][1]}") for channel, _ in ways)
            new.extend(
                (self.graph.ends[channel][1], f"{lineage}>{self.graph.ends[channel][1]}", n) for channel, n in ways
            )
        return found

    def ways(self, at: ProcessId, lineage: str) -> Sequence[ChannelId]:
        """Return the channels that a process passes a record on to: all outputs. A subclass may override this."""
        return self.graph.outputs[at]

    @cached_property
    def bits(self) -> dict[str, int]:
        """Bit of each lineage."""
        return {lineage: 1 << number for number, lineage in enumerate(self.routes)}

    @cached_property
    def places(self) -> dict[str, tuple[str, int]]:
        """The path of each lineage from its source, and its position among all records of that path."""
        named = sorted((*_place(lineage), lineage) for lineage in self.routes)
        return {
            lineage: (way, place)
            for way, together in groupby(named, key=itemgetter(0))
            for place, (_, _, lineage) in enumerate(together)
        }

    @cached_property
    def expected(self) -> dict[ProcessId, int]:
        """Mask of all lineages that each process takes in, its own inputs included."""
        masks = dict.fromkeys(self.graph.processes, 0)
        for lineage, bit in self.bits.items():
            masks[self._holder(lineage)] |= bit
        return masks

    def names(self, mask: int) -> list[str]:
        """Return the lineages in a mask."""
        return [lineage for lineage, bit in self.bits.items() if mask & bit]

    def lineage(self, body: object) -> str:
        """Return a body without its digest."""
        return str(body).partition("#")[0] if self.ordered else str(body)

    def digest(self, before: int, lineage: str) -> int:
        """Return the digest of everything that a process has taken in, in order, as one number."""
        return crc32(lineage.encode(), before) if self.ordered else 0

    def body(self, lineage: str, digest: int) -> str:
        """Return the body that is sent for a lineage."""
        return f"{lineage}#{digest:08x}" if self.ordered else lineage

    def _holder(self, lineage: str) -> ProcessId:
        last = lineage.rpartition(">")[2]
        return ProcessId(last.partition(".")[0])


def _place(lineage: str) -> tuple[str, int]:
    source, _, way = lineage.partition(">")
    name, _, number = source.rpartition(".")
    return f"{name}>{way}", int(number)


@lru_cache(maxsize=256)
def application(graph: Graph, inputs: int, loops: int = 1, ordered: bool = False) -> Application:
    """Return the application of a graph; cached, because `routes` is expensive."""
    return Application(graph, inputs, loops, ordered)
