"""Random schedules of snapshots around two loops as behaviours of `CyclicSnapshot`, for TLC to accept or reject.

No snapshot is aborted: timeouts do not expire, no write fails.  Writes take their time, control messages overtake each
other, processes crash, and the coordinator crashes with its commit under way.  Once a recovery is decided, all processes
do their part and replay before any other step: the specification has this as one step.  After each step the trace has
the state of the machines: channels, rows taken, processes with a copy, the head's log, the newest committed snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from checkpoint_lab.schedules import Driver
from checkpoint_lab.world import Choice
from checkpoint_protocols.graph import COORDINATOR, Graph, channel_between
from checkpoint_protocols.ids import ChannelId, ProcessId
from checkpoint_protocols.machine import Effect
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Key, Protocol, checkpoint_key
from checkpoint_protocols.snapshots.coordinator import BEGIN, SnapshotCoordinator
from checkpoint_protocols.snapshots.coordinator import SnapshotStep as Progress
from checkpoint_protocols.snapshots.cyclic import PROTOCOL, CyclicPhase, CyclicTask
from checkpoint_protocols.vocabulary import Envelope, Received
from tests.specs.message_traces import Numbered, counts, drawn, have_of, number_of
from tests.specs.tla import Step, record, sequence, set_of, traces_module

MODULE = "TraceCyclicSnapshot"
TWO_LOOPS = Graph("two_loops", (("s", "a"), ("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")))
ROWS = 5
STEPS = 110
AT_ONCE = ("restore", "replay")


class Loops(Numbered):
    """Two loops, with numbered snapshots."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(protocol, TWO_LOOPS, ROWS)


def recorded(seed: int, protocol: Protocol = PROTOCOL) -> list[Step]:
    """Return a schedule of the world."""
    world = Loops(protocol)
    driver = Driver(world, seed, fault_rate=0.03, timer_rate=0.15)
    steps: list[Step] = []
    for choice in drawn(driver, STEPS, AT_ONCE):
        action = action_of(choice, world)
        driver.do(choice)
        if choice[0] in ("recover", *AT_ONCE) and not _under_way(world):
            action = ("restore" if world.plan and world.plan.parts else "succeed", "")
        if action:
            steps.append(Step(*action, {} if world.alarm else shown(world)))
    return steps


def _under_way(world: Loops) -> bool:
    """Return True while a process has a part of the recovery to do."""
    return world.recovering or any(process.replay for process in world.everybody)


def action_of(choice: Choice, world: Loops) -> tuple[str, str] | None:
    """Return the action of the choice in the specification, if there is one."""
    match choice:
        case ("read", _):
            return ("read", "")
        case ("stored", str(name), int(number), "ok"):
            return _written(world, world.processes[ProcessId(name)].writes[number].key)
        case ("deliver", str(channel), int(position)):
            message = world.network.peek(ChannelId(channel), position).message
            return _taken(message) if counts(message, world) else None
    return None


def _written(world: Loops, key: Key) -> tuple[str, str] | None:
    if key[0] == "begun":
        world.begun.append(int(key[1]))
    return {"begun": ("begin", ""), "commit": ("complete", "")}.get(key[0])


def _taken(message: Envelope) -> tuple[str, str] | None:
    ends = (message.source, message.target)
    if message.kind == BEGIN:
        return ("source", "")
    if COORDINATOR in ends:
        return None
    new, passed, back = ("new", "pass", "back") if message.kind == APP else ("head", "loop", "around")
    if ends == ("s", "a"):
        return (new, "")
    return (back, message.source) if message.target == "a" else (passed, message.target)


# -- state of the machines ----------------------------------------------------------------------------------------


def shown(world: Loops) -> dict[str, str]:
    """Return the state of the machines, as TLA+."""
    processes = {str(name): process for name, process in world.processes.items() if name != COORDINATOR}
    coordinator, head = world.processes[COORDINATOR].machine, processes["a"].machine
    assert isinstance(coordinator, SnapshotCoordinator)
    assert isinstance(head, CyclicTask)
    opened = next((number for number, each in coordinator.open.items() if each.step is not Progress.NAMING), 0)
    copied = [name for name, process in processes.items() if getattr(process.machine, "index", 0) == opened]
    return {
        "cursor": str(processes["s"].state.cursor),
        "have": have_of(world.app, {name: process.state.have for name, process in processes.items()}),
        "chan": _channels(world),
        "open": str(world.ordinal(opened)),
        "copied": set_of(f'"{name}"' for name in copied),
        "logging": str(head.phase is CyclicPhase.LOGGING).upper(),
        "log": _log(head.log),
        "marked": set_of(f'"{loop}"' for loop in "bc" if channel_between(loop, "a") not in head.awaited),
        "complete": _complete(world),
    }


def _channels(world: Loops) -> str:
    """Return the messages on the way, sender by sender, without undone ones."""
    queues: dict[str, dict[str, str]] = {}
    for channel, (source, target) in world.graph.ends.items():
        messages = [item.message for item in world.network.queues[channel]]
        queue = [_item(world, message) for message in messages if counts(message, world)]
        queues.setdefault(source, {})[target] = sequence(queue)
    return record({source: record(queue) for source, queue in queues.items()})


def _item(world: Loops, message: Envelope) -> str:
    row = message.kind == APP
    kind, number = ("row", number_of(message.body)) if row else ("barrier", world.ordinal(message.index))
    return f'[kind |-> "{kind}", number |-> {number}]'


def _log(messages: Sequence[Envelope]) -> str:
    return record(
        {loop: sequence([str(number_of(each.body)) for each in messages if each.source == loop]) for loop in "bc"}
    )


def _complete(world: Loops) -> str:
    """Return the newest committed snapshot in storage."""
    number = world.decided()
    key = checkpoint_key(number) if number else None
    cuts = {name: world.processes[ProcessId(name)].storage.cuts[key] if key else world.initial for name in "sabc"}
    have = have_of(world.app, {name: cut.have for name, cut in cuts.items()})
    return record({"cursor": str(cuts["s"].cursor), "have": have, "log": _log(_logged(world, key))})


def _logged(world: Loops, key: Key | None) -> list[Envelope]:
    if key is None:
        return []
    kept = world.processes[ProcessId("a")].storage.readable()[key]["messages"]
    assert isinstance(kept, list)
    return [Envelope.of(each) for each in kept if isinstance(each, dict)]


def trace_files(traces: Sequence[Sequence[Step]]) -> dict[str, str]:
    """Return the module that the trace specification reads."""
    return traces_module("RecordedCycles", traces)


# -- planted bugs -------------------------------------------------------------------------------------------------


class LogsNothing(CyclicTask):
    """A head that does not log the rows in its loops."""

    def _on_logged_message(self, event: Received) -> list[Effect]:
        return self._deliver(event)


FORGETFUL = replace(PROTOCOL, worker=LogsNothing)


def corrupted(trace: Sequence[Step], what: str) -> list[Step]:
    """Return the bare actions with a wrong one: it breaks a rule of the specification, for any state."""
    steps = [replace(step, shown={}) for step in trace]
    around = next(number for number, step in enumerate(steps) if step.action == "around")
    match what:
        case "dropped":
            del steps[around]
        case "swapped":
            start = next(number for number, step in enumerate(steps) if step.action == "begin")
            steps[start], steps[around] = steps[around], steps[start]
    return steps
