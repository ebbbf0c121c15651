"""Random schedules of the lease world as behaviours of `CheckpointLease`, for TLC to accept or reject.

Times are milliseconds of clocks that run at one rate (readings are then exact), so a tick is a millisecond.  Reports
arrive and terms are appended at once, and no node pauses: the specification has these as one step, or as a delay.
After each step the trace has the state of the machines: primary, log, executions, phase, payloads, tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from checkpoint_lab.faults import Faults
from checkpoint_lab.lease_node import Node
from checkpoint_lab.lease_world import LeaseWorld, Scope
from checkpoint_lab.schedules import Driver
from checkpoint_lab.world import Choice
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.messages import LeaseSettings
from checkpoint_protocols.lease.replica import ReplicaPhase
from tests.simulator.lease_returns import ReturningWorld, Returns, Said

MODULE = "TraceCheckpointLease"
SETTINGS = LeaseSettings(least_ms=20, first_ms=20, most_ms=20, margin_ms=1, fresh_ms=13)
"""A lease of 20, of which the holder may use 14."""
SCOPE = Scope({"a": 100, "b": 100, "c": 100}, settings=SETTINGS, commands=0)
FAULTS = Faults(2, 0, 0, 0, 0, 0, 0)
STEPS = 70
AT_ONCE = ("hear", "append", "answer", "propagate")
PHASES = {
    ReplicaPhase.FOLLOWING: "idle",
    ReplicaPhase.LEADING: "idle",
    ReplicaPhase.GRANTED: "can",
    ReplicaPhase.TAKING: "taking",
    ReplicaPhase.PUBLISHING: "pub",
}


@dataclass(frozen=True)
class Step:
    """One action of the specification, and the state of the machines after it."""

    action: str
    node: str
    number: int
    shown: Mapping[str, str]


Recording = Sequence[Step]


def recorded(seed: int) -> list[Step]:
    """Return a schedule of the world, without steps that the specification lacks."""
    return _recorded(LeaseWorld(SCOPE, FAULTS), seed)


def recorded_returning(seed: int) -> list[Step]:
    """Return a schedule in which holders return their leases, and ended incarnations are noticed."""
    return _recorded(ReturningWorld(SCOPE, FAULTS, returns=Returns(returns=3, stops=0, resigns=0, jumps=0)), seed)


def _recorded(world: LeaseWorld, seed: int) -> list[Step]:
    driver = Driver(world, seed, fault_rate=0.05, timer_rate=0.12)
    steps: list[Step] = []
    for _ in range(STEPS):
        at_once = [choice for choice in world.choices() if choice[0] in AT_ONCE]
        choice = at_once[0] if at_once else driver.next_choice()
        if choice is None or (world_has_terms(world) and choice[0] != "append"):
            break
        before = actions(choice, world)
        driver.do(choice)
        if choice[0] in ("start", "write") and _gave_up(world.nodes[ProcessId(str(choice[1]))]):
            before = [("elapse", str(choice[1]), 0)]
        visible = choice[0] != "land"  # the answer is a choice of its own, and part of the same step there
        steps += [Step(*action, {}) for action in before[:-1]]
        steps += [Step(*action, shown(world) if visible else {}) for action in before[-1:]]
    return steps


def world_has_terms(world: LeaseWorld) -> bool:
    """Return True while terms wait for their append: the specification has no such state."""
    return any(node.outbox is not None for node in world.nodes.values())


def actions(choice: Choice, world: LeaseWorld) -> list[tuple[str, str, int]]:
    """Return the actions of the choice in the specification; none for the first half of a step."""
    kind, *arguments = choice
    name = str(arguments[0]) if arguments else ""
    match kind:
        case "elect" | "execute" | "start" | "write" | "crash" | "recover" | "return" | "gone":
            return [(str(kind), name, 0)]
        case "elapse":
            return _elapsed(world, world.nodes[ProcessId(name)])
        case "hear":
            return [("hear", name, 0)]
        case "append":
            terms = world.nodes[ProcessId(name)].outbox
            return [("issue", terms.holder, 0)] if terms else []
        case "land":
            awake = world.nodes[ProcessId(name)].awake
            return [("land" if awake else "lost", name, int(arguments[1] or 0))]
        case "returned":
            return [_heard(world, Said(ProcessId(name), int(arguments[1] or 0)))]
        case "answer":
            return [("answer", name, 0)]
        case "advance":
            return [("pass", "", int(arguments[0] or 0))]
    return []


def _heard(world: LeaseWorld, said: Said) -> tuple[str, str, int]:
    """Return the action of a return that arrives, and if it will arrive once more."""
    assert isinstance(world, ReturningWorld)
    return "returned first" if world.said.count(said) > 1 else "returned", said.node, said.token


def _elapsed(world: LeaseWorld, node: Node) -> list[tuple[str, str, int]]:
    """Return the time until the timer is due, then its end if it belongs to the current lease."""
    assert node.due is not None
    passed = max(0, node.due - world.now) // world.unit
    held = node.replica is not None and node.replica.until_ms == node.local(max(node.due, world.now))
    return [*([("pass", "", passed)] if passed else []), *([("elapse", node.name, 0)] if held else [])]


def _gave_up(node: Node) -> bool:
    """Return True if the step came at the last instant, before the timer, and the machine read the clock."""
    return node.replica is not None and node.replica.phase is ReplicaPhase.FOLLOWING


def shown(world: LeaseWorld) -> dict[str, str]:
    """Return the state of the machines, as TLA+."""
    nodes = world.nodes.values()
    phases = {node.name: PHASES[node.replica.phase] if node.replica else "idle" for node in nodes}
    return {
        "leader": f'"{world.leader or "none"}"',
        "exec": _function({node.name: str(node.replica.applied if node.replica else 0) for node in nodes}),
        "phase": _function({name: f'"{phase}"' for name, phase in phases.items()}),
        "payload": _function({node.name: str(node.payload) for node in nodes}),
        "entries": str(len(world.log)),
        "tokens": f"<<{', '.join(map(str, world.published))}>>",
    }


def _function(values: Mapping[str, str]) -> str:
    return "[" + ", ".join(f"{name} |-> {value}" for name, value in values.items()) + "]"


def trace_files(traces: Sequence[Recording]) -> dict[str, str]:
    """Return the module that the trace specification reads."""
    body = ",\n".join("<<" + ",\n  ".join(map(_step, trace)) + ">>" for trace in traces)
    return {"RecordedLease.tla": f"---- MODULE RecordedLease ----\nTraces == <<\n{body}\n>>\n====\n"}


def _step(step: Step) -> str:
    fields = {"act": f'"{step.action}"', "n": f'"{step.node}"', "k": str(step.number)}
    fields |= {"seen": _function(step.shown) if step.shown else "[none |-> 0]", "shows": str(bool(step.shown)).upper()}
    return _function(fields)


def corrupted(trace: Recording, what: str) -> list[Step]:
    """Return the schedule with one error: a phase, an index, or a step before its time."""
    steps = list(trace)
    position = next(number for number, step in enumerate(steps) if step.action == "start")
    step = steps[position]
    match what:
        case "phase":
            shown = {**step.shown, "phase": step.shown["phase"].replace("taking", "pub")}
            steps[position] = replace(step, shown=shown)
        case "exec":
            steps[position] = replace(step, shown={**step.shown, "exec": _function(dict.fromkeys("abc", "7"))})
        case "order":
            steps.insert(0, replace(steps.pop(position), shown={}))
    return steps
