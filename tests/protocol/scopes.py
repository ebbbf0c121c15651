"""Small scopes that are explored completely, and their numbers of states: fewer would mean that some step became impossible."""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint_lab import GRAPHS, Exploration, MessageWorld, explore
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.menu import MENU
from tests.protocol.long_runs import crashes

LOOP = Graph("own_loop", (("s", "a"), ("a", "a")))
"""The smallest graph with a back edge, whose messages in flight are in no input."""

PAIR = GRAPHS["pair"]


@dataclass(frozen=True)
class Scope:
    """One row passes through the graph, one timer may run out. `states`: of the reduced exploration."""

    protocol: str
    graph: Graph
    failures: int
    states: int
    seconds: float
    """CPU seconds, measured once."""

    @property
    def title(self) -> str:
        """Title for tables."""
        failures = "a failure" if self.failures == 1 else f"{self.failures} failures"
        return f"{self.protocol}, {self.graph.name}, {failures}, reduced"

    def world(self) -> MessageWorld:
        """The first state."""
        return MessageWorld(MENU[self.protocol], self.graph, crashes(self.failures), 1)

    def explore(self, reduced: bool = True) -> Exploration:
        """Explore all states."""
        return explore(self.world(), states_max=2_000_000, reduced=reduced)


SCOPES_WITH_FAILURES = [
    Scope("synchronous-logging", PAIR, 2, 4_925, 3.3),
    Scope("synchronous-logging", LOOP, 2, 16_589, 12.2),
    Scope("coordinated", PAIR, 2, 8_998, 8.4),
    Scope("coordinated", LOOP, 2, 32_141, 31.3),
    Scope("asynchronous-logging", PAIR, 2, 11_201, 9.8),
    Scope("asynchronous-logging", LOOP, 1, 1_025, 0.8),
    Scope("asynchronous-logging", LOOP, 2, 35_202, 50.8),
    Scope("markers", LOOP, 1, 3_551, 2.7),
    Scope("markers", LOOP, 2, 83_409, 115.5),
    Scope("cyclic-snapshots", LOOP, 1, 3_571, 2.9),
    Scope("cyclic-snapshots", LOOP, 2, 83_977, 112.4),
    Scope("epochs", PAIR, 1, 4_136, 3.6),
    Scope("epochs", PAIR, 2, 84_743, 95.1),
    Scope("epochs", LOOP, 1, 9_384, 11.5),
    Scope("epochs", LOOP, 2, 234_919, 174.7),
    Scope("snapshots", PAIR, 1, 1_859, 1.4),
    Scope("snapshots", PAIR, 2, 39_202, 35.8),
    Scope("partial-recovery", PAIR, 1, 2_309, 1.9),
    Scope("partial-recovery", PAIR, 2, 57_630, 78.1),
    Scope("index-based", PAIR, 1, 6_372, 8.3),
    Scope("index-based", PAIR, 2, 181_036, 358.1),
    Scope("index-based", LOOP, 1, 15_856, 16.5),
    Scope("index-based", LOOP, 2, 982_904, 1352.8),
    Scope("adaptive-logging", PAIR, 1, 6_996, 7.9),
    Scope("adaptive-logging", PAIR, 2, 199_864, 322.0),
    Scope("adaptive-logging", LOOP, 1, 17_472, 17.9),
    Scope("adaptive-logging", LOOP, 2, 1_087_056, 1526.9),
    Scope("uncoordinated", PAIR, 1, 4_443, 4.6),
    Scope("uncoordinated", PAIR, 2, 184_489, 259.8),
    Scope("uncoordinated", LOOP, 1, 10_044, 12.1),
    Scope("uncoordinated", LOOP, 2, 558_154, 570.4),
    Scope("sender-logging", PAIR, 1, 3_883, 3.4),
    Scope("sender-logging", PAIR, 2, 113_960, 154.5),
    Scope("sender-logging", LOOP, 1, 32_950, 55.2),
]
