"""Schedules of every protocol, on the fixed graphs and in drawn worlds: how many, how long, what happened in them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from time import process_time

import spark_ckpt.simulator as sim
from spark_ckpt.protocol.menu import MENU
from spark_ckpt.simulator.lease_world import LeaseWorld, Scope
from spark_ckpt.simulator.schedules import FAULT_RATE, STEPS, Driver
from spark_ckpt.simulator.scripted import PACE
from spark_ckpt.simulator.world import Cell, Choice, World
from tests.simulator.lease_runs import FAULTS as LEASE_FAULTS
from tests.simulator.lease_runs import RATES, SICK

CURVE_POINTS = 10

CLASSES = {
    "crash": "a process dies",
    "suspect": "a living process is taken for dead",
    "haunt": "a replaced life goes on",
    "freeze": "a recovery reaches the processes one by one",
    "within": "a recovery begins within another",
    "late": "a dead life's write or rows arrive",
    "failed": "a write fails",
    "torn": "a write tears",
    "control lose": "a control message is lost",
    "control repeat": "a control message comes twice",
    "lose": "a message of the application is lost (unreliable channels)",
    "repeat": "a message of the application comes twice (unreliable channels)",
    "pause": "a process stands still",
    "cut": "two processes cannot reach each other",
}


class States(set[Cell]):
    """Distinct phase, event and fault before it: a set of cells that adds what went wrong last."""

    def __init__(self) -> None:
        super().__init__()
        self.fault = ""

    def add(self, cell: Cell) -> None:
        """One more, with the newest fault."""
        super().add((cell[0], cell[1], f"{cell[2]} after {self.fault}"))


@dataclass
class Tried:
    """One protocol's."""

    protocol: str
    schedules: int = 0
    steps: int = 0
    simulated_ms: float = 0.0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    curve: list[tuple[int, int]] = field(default_factory=list)
    replayed: int = 0


class Witness(Driver):
    """Draws as ever, and says what goes wrong."""

    def __init__(self, world: World, seed: int, fault_rate: float, states: States) -> None:
        super().__init__(world, seed, fault_rate)
        self.states, self.happened = states, set[str]()
        states.fault = ""
        world.cells = states

    def do(self, choice: Choice) -> None:
        kind = class_of(choice)
        if kind:
            self.happened.add(kind)
            self.states.fault = kind
        super().do(choice)

    def _fault(self) -> Choice | None:
        choice = super()._fault()
        if choice is not None and class_of(choice) == "":
            self.happened.add(str(choice[0]))
        return choice


def class_of(choice: Choice) -> str:
    """The class of a fault among those of the message world; nothing for work."""
    kind = str(choice[-1] if choice[0] == "stored" else choice[0])
    if kind in ("lose", "repeat") and "=>" in str(choice[1]):
        return f"control {kind}"
    return kind if kind in CLASSES else ""


def world_of(protocol: str, seed: int) -> World:
    """Fixed graphs under even seeds, drawn worlds under odd ones; what is not in the menu has its own worlds."""
    if protocol == sim.LEASE:
        return LeaseWorld(Scope(RATES[seed % len(RATES)], SICK if seed % 2 else {}), LEASE_FAULTS)
    if protocol in MENU and seed % 2:
        return sim.drawn_world(MENU[protocol], seed)
    graphs = sim.graphs_of(protocol)
    return sim.Scenario(protocol, graphs[seed // 2 % len(graphs)], seed).world()


def one(protocol: str, seed: int, states: States) -> tuple[sim.Outcome, Witness, World]:
    """One schedule, watched."""
    steps, rate = PACE.get(protocol, (STEPS, FAULT_RATE))
    world = world_of(protocol, seed)
    drivers: list[Witness] = []

    def driver_of(world: World, seed: int, fault_rate: float) -> Witness:
        drivers.append(Witness(world, seed, fault_rate, states))
        return drivers[0]

    return sim.drive(world, seed, steps, rate, driver_of), drivers[0], world


def tried(protocol: str, seconds: float, first: int = 0) -> Tried:
    """Schedules for so long, of processor time; every tenth is run again and has to be the same to the byte."""
    found, states, begun, seed = Tried(protocol), States(), process_time(), first
    while (used := process_time() - begun) < seconds:
        outcome, witness, world = one(protocol, seed, states)
        _add(found, outcome, witness, world)
        if seed % 10 == 0:
            again = one(protocol, seed, States())[0]
            assert json.dumps(again.trace) == json.dumps(outcome.trace)
            found.replayed += 1
        if used >= seconds * (len(found.curve) + 1) / CURVE_POINTS:
            found.curve.append((found.schedules, len(states)))
        seed += 1
    found.curve.append((found.schedules, len(states)))
    found.seconds = process_time() - begun
    return found


def _add(found: Tried, outcome: sim.Outcome, witness: Witness, world: World) -> None:
    found.schedules += 1
    found.steps += len(outcome.trace)
    found.simulated_ms += float(getattr(world, "now", 0)) / getattr(world, "unit", 1)
    found.happened.update(witness.happened)
    found.happened["within"] += bool(outcome.counts.get("recovery within a recovery"))
    if not outcome.ok:
        found.failures.append(f"seed {outcome.seed}: {outcome.error}".splitlines()[0])
