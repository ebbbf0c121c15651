"""Schedules of the snapshot protocols, judged more strictly for a protocol that promises more than its host asks.

Partial recovery regenerates messages, so the host does not look for orphans in its lines: a replay would send them.
But a complete snapshot is a consistent cut there too, because a process that is ahead of a replay refuses it.
"""

from __future__ import annotations

from checkpoint_lab import ACYCLIC, GRAPHS, Faults, MessageWorld, ScheduleOutcome, drive
from checkpoint_lab.process import Process
from checkpoint_lab.violations import Lost, Orphan
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.recovery import Protocol, ProtocolSettings
from tests.simulator.eager import drive_long, long_world


class AuditedWorld(MessageWorld):
    """Looks for orphans and lost messages in every complete line."""

    def judge_complete(self, process: Process, index: str) -> None:
        """Check O1 and O2 with every protocol."""
        super().judge_complete(process, index)
        found = self.audit(index)
        if found.orphans:
            raise Orphan(f"checkpoint {index} is complete: received and not sent: {found.orphans}")
        if found.lost:
            raise Lost(f"checkpoint {index} is complete: in transit and nowhere: {found.lost}")


def graphs_for(protocol: Protocol) -> list[Graph]:
    """All graphs that the protocol can run on, those with the most channels first: more happens in them."""
    graphs = (ACYCLIC if protocol.needs.acyclic else GRAPHS).values()
    return sorted(graphs, key=lambda graph: len(graph.channels), reverse=True)


def graph_in_turn(protocol: Protocol, seed: int) -> Graph:
    """The graph of a seed; seeds take turns."""
    graphs = graphs_for(protocol)
    return graphs[seed % len(graphs)]


def play(
    protocol: Protocol,
    graph: Graph,
    seed: int,
    inputs: int = 3,
    steps: int = 50,
    settings: ProtocolSettings | None = None,
) -> ScheduleOutcome:
    """One random schedule with faults, to its end."""
    return drive(AuditedWorld(protocol, graph, Faults(), inputs, settings=settings or ProtocolSettings()), seed, steps)


def play_long(protocol: Protocol, seed: int) -> ScheduleOutcome:
    """A schedule ten times as long, on each graph in turn."""
    return drive_long(long_world(protocol, graph_in_turn(protocol, seed), Faults(), world_of=AuditedWorld), seed)
