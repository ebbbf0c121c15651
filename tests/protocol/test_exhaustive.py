"""Small scopes, all of them: every interleaving of a tiny job, and in each of its states every possible
fault.

States are compared without histories, so that each is visited once.  From every end, and after every fault,
the world is driven on calmly and must reach the effect of a run without failures.
"""

from __future__ import annotations

import pickle
import random
from collections import deque
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import pytest

from spark_ckpt.protocol import barrier as b
from spark_ckpt.protocol.machine import Event, Machine
from tests.protocol.durable import Graph
from tests.protocol.host import Choice, World
from tests.protocol.processes import SinkProcess
from tests.protocol.schedules import calm_down

LINE = Graph("line", {"s": 1}, (("s", "k"),), ("k",))
MERGE = Graph("merge", {"s": 1, "t": 0}, (("s", "k"), ("t", "k")), ("k",))
HIDDEN = {"_story", "graph", "roles", "topology", "limits", "now"}
UNORDERED = {"messages", "stores", "timers"}


def canonical(value: Any) -> Any:
    """A hashable picture of a value: equal for worlds that behave alike."""
    if isinstance(value, Enum) or value is None or isinstance(value, int | str | type):
        return value
    if isinstance(value, dict):
        return tuple((canonical(key), canonical(value[key])) for key in sorted(value, key=str))
    if isinstance(value, set | frozenset):
        return tuple(sorted(map(canonical, value), key=str))
    if isinstance(value, list | tuple | deque):
        return tuple(map(canonical, value))
    names = [field.name for field in fields(value)] if is_dataclass(value) else list(vars(value))
    return (type(value).__name__, *(_named(name, getattr(value, name)) for name in names if name not in HIDDEN))


def _named(name: str, value: Any) -> Any:
    pictured = canonical(value)
    return (name, tuple(sorted(pictured, key=str)) if name in UNORDERED else pictured)


def clone(world: World) -> World:
    """A world of its own, without the machines' stories."""
    for machine in machines(world):
        machine._story.clear()
    copied: World = pickle.loads(pickle.dumps(world))
    return copied


def machines(world: World) -> list[Machine[Any]]:
    tasks = [task for task in world.tasks.values() if task]
    sinks = [task.participant for task in tasks if isinstance(task, SinkProcess)]
    return [*(each.machine for each in world.coordinators), *(task.machine for task in tasks), *sinks]


def first_barrier(world: World) -> list[Choice]:
    """The scope: the clock begins one epoch, unless none was begun because of a fault."""
    if any(each.injected for each in world.coordinators):
        return []
    return [choice for choice in world.timers() if isinstance(_elapsed(world, choice), b.IntervalElapsed)][:1]


def _elapsed(world: World, choice: Choice) -> Event:
    return world.coordinators[choice[1]].timers[choice[2]][1]


def reachable(graph: Graph, states_max: int) -> list[World]:
    """Every state that some order of events leads to, without faults."""
    found: dict[int, World] = {}
    stack = [World(graph)]
    while stack:
        here = stack.pop()
        mark = hash(canonical(here))
        if mark in found:
            continue
        found[mark] = here
        assert len(found) < states_max, "the scope has grown: make it smaller, or the bound larger on purpose"
        stack.extend(after(here, choice) for choice in here.choices() + first_barrier(here))
    return list(found.values())


def after(world: World, choice: Choice) -> World:
    following = clone(world)
    following.do(choice)
    return following


def judge(world: World) -> None:
    """Drive a copy on to its end, without more faults."""
    calm = clone(world)
    calm_down(calm, random.Random(0))
    calm.judge_end()


@pytest.mark.parametrize(("graph", "states_max"), [(LINE, 400), (MERGE, 3_500)], ids=["line", "merge"])
def test_every_interleaving_of_one_epoch_ends_well(graph: Graph, states_max: int) -> None:
    ends = [world for world in reachable(graph, states_max) if not world.choices() + first_barrier(world)]

    assert ends
    for world in ends:
        judge(world)


def test_every_single_fault_in_every_state_is_survived() -> None:
    for world in reachable(LINE, states_max=400):
        for fault in world.faults():
            judge(after(world, fault))
