"""Worlds drawn from a seed: any small graph, times, options and clocks, in addition to the fixed worlds."""

from __future__ import annotations

import random
from collections.abc import Mapping

from checkpoint_lab.faults import Clock, Clocks, hostile
from checkpoint_lab.message_world import MessageWorld
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.recovery import Protocol, Settings
from checkpoint_protocols.vocabulary import Json

Draw = random.Random

BACK_EDGES = 0.4
"""Share of the graphs that loop, if loops are allowed."""

SHORT_CUTS = 0.35
"""Share of the graphs with an additional edge from a source to a sink."""

INTERVALS_MS, TIMEOUTS_MS = (200, 1_000, 5_000), (500, 3_000, 10_000)
RATES = (0.7, 0.9, 1.0, 1.0, 1.1, 1.3)
OFFSETS_MS = (0, 0, 100, 250, 1_000)
LOOSELY, WITHIN_MS = (0.99, 1.0, 1.01), (0, 0, 100)
BY_THE_CLOCK = frozenset({"index-based", "adaptive-logging"})
"""Protocols that number checkpoints by loosely synchronised clocks.

A process that is a minute ahead, or ever faster, would make the others' rows and records wait as long. No oracle would
be violated, but no schedule would end.
"""
NUMBERS = (1, 2, 5)
PROMISES_LESS = frozenset({("sender-logging", "log")})
"""Options with a value under which the protocol promises less than the campaigns judge; they keep their default."""


def drawn_world(protocol: Protocol, seed: int) -> MessageWorld:
    """Return the world of a seed, with everything drawn except the protocol."""
    draw = Draw(f"world {seed}")
    graph = drawn_graph(draw, f"drawn_{seed}", protocol.needs.acyclic)
    interval_ms, timeout_ms = draw.choice(INTERVALS_MS), draw.choice(TIMEOUTS_MS)
    settings = Settings(interval_ms, timeout_ms, drawn_options(draw, protocol))
    rates, offsets = (LOOSELY, WITHIN_MS) if protocol.name in BY_THE_CLOCK else (RATES, OFFSETS_MS)
    clocks = Clocks({name: Clock(draw.choice(rates), draw.choice(offsets)) for name in graph.processes})
    return MessageWorld(protocol, graph, hostile(seed), draw.randint(1, 4), 1, settings, clocks)


def drawn_graph(draw: Draw, name: str, acyclic: bool) -> Graph:
    """Draw one or two sources, up to three inner processes, and one or two sinks.

    A source reaches every process, and every process reaches a sink.
    """
    sources, sinks = ["s", "t"][: draw.randint(1, 2)], ["k", "l"][: draw.randint(1, 2)]
    inner = ["a", "b", "c"][: draw.randint(0, 3)]
    before, edges = [*sources], list[tuple[str, str]]()
    for process in [*inner, *sinks]:
        edges.append((draw.choice(before), process))
        before += [process] if process in inner else []
    # a process without an output gets one, so that every process leads to a sink
    starts = {source for source, _ in edges}
    edges += [(each, draw.choice([*inner[inner.index(each) + 1 :], *sinks])) for each in inner if each not in starts]
    edges += [(each, draw.choice([*inner, *sinks])) for each in sources if each not in starts]
    if draw.random() < SHORT_CUTS:
        edges.append((draw.choice(sources), draw.choice(sinks)))
    if inner and not acyclic and draw.random() < BACK_EDGES:
        late = draw.randrange(len(inner))
        edges.append((inner[late], inner[draw.randint(0, late)]))
    return Graph(name, tuple(dict.fromkeys(edges)))


def drawn_options(draw: Draw, protocol: Protocol) -> Mapping[str, Json]:
    """Draw values for some of the protocol's options."""
    free = {name: each for name, each in protocol.options.items() if (protocol.name, name) not in PROMISES_LESS}
    return {name: draw.choice(each.words or NUMBERS) for name, each in free.items() if draw.random() < 0.5}
