"""Seeded schedules over a world: chaos for a while, then calm until the run has drained."""

from __future__ import annotations

import random
from typing import Any

from tests.protocol.durable import Graph
from tests.protocol.host import ROLES, Choice, Roles, World

CALM_STEPS_MAX = 4_000
"""A drained run takes a few hundred steps; ten times that without an end is a livelock (O10)."""

SLOW = ("nothing", "snapshot", "decide", "prepare", "publish", "ask", "restore", "message", "receive")
"""What a seed's chaos puts off as long as anything else can happen: rare paths need something that lags."""


def run(graph: Graph, seed: int, roles: Roles = ROLES, fault_rate: float = 0.03) -> World:
    """Drive a world by one seed to its end; raises what the machines and oracles find."""
    choose = random.Random(seed)
    world = World(graph, roles, newest_marker_only=choose.random() < 0.5)
    slow = choose.choice(SLOW)
    fault_rate *= choose.choice((0, 0.3, 1, 2))
    for _ in range(choose.randrange(200)):
        world.do(_chaotic(world, choose, fault_rate, slow))
    calm_down(world, choose)
    world.judge_end()
    return world


def _chaotic(world: World, choose: random.Random, fault_rate: float, slow: str) -> Choice:
    draw = choose.random()
    if draw < fault_rate and (faults := world.faults()):
        return choose.choice(faults)
    if draw < fault_rate + 0.1 and (timers := world.timers()):
        return choose.choice(timers) if draw < fault_rate + 0.02 else _next_timer(world)
    quick = [choice for choice in world.choices() if _what(world, choice) != slow]
    return choose.choice(quick) if quick else _any(world, choose)


def _what(world: World, choice: Choice) -> str:
    return str(world.stores[choice[1]][0] if choice[0] == "stored" else choice[0])


def _any(world: World, choose: random.Random) -> Choice:
    if choices := world.choices():
        return choose.choice(choices)
    return _next_timer(world)


def _next_timer(world: World) -> Choice:
    timers: list[Any] = world.timers()
    return min(timers, key=lambda choice: world.coordinators[choice[1]].timers[choice[2]][0])


def calm_down(world: World, choose: random.Random) -> None:
    """No more faults; stop the job when its sources are exhausted; return when it has ended (O10)."""
    stopped = 0
    for _ in range(CALM_STEPS_MAX):
        if world.finished:
            return
        coordinator = world.coordinator
        if coordinator and coordinator.life != stopped and world.exhausted and not world.needs_takeover:
            stopped = coordinator.life
            world.do(("stop",))
        else:
            world.do(_any(world, choose))
    raise AssertionError(f"O10: no end after {CALM_STEPS_MAX} calm steps; stories: {_stories(world)}")


def _stories(world: World) -> str:
    machines = [each.machine for each in world.coordinators] + [task.machine for task in world.tasks.values() if task]
    return "\n".join(f"{machine}: " + "\n  ".join(map(str, machine.story)) for machine in machines)
