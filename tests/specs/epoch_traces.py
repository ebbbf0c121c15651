"""Random schedules of snapshots by epochs as behaviours of `Epochs`, for TLC to accept or reject.

No epoch is aborted: timeouts do not expire, no write fails.  Epochs overlap, and begin in the order of their ids.
Messages overtake each other, writes take their time, processes crash, and the coordinator crashes with its commit under
way.  Once a recovery is decided, all processes do their part before any other step: the specification has this as one
step.  A replayed message is taken like any other.  After each step the trace has the state of the machines: channels,
rows taken, epochs, counts, the open epochs, the newest committed one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from checkpoint_lab.process import Process
from checkpoint_lab.schedules import Driver
from checkpoint_lab.world import Choice
from checkpoint_protocols.graph import COORDINATOR, Graph
from checkpoint_protocols.ids import ChannelId, Epoch, ProcessId
from checkpoint_protocols.record_fields import by_number
from checkpoint_protocols.recovery import Key, Protocol, checkpoint_key
from checkpoint_protocols.snapshots.coordinator import ACK, Open, SnapshotCoordinator
from checkpoint_protocols.snapshots.coordinator import SnapshotStep as Progress
from checkpoint_protocols.snapshots.epochs import LATE, PROTOCOL, EpochCoordinator, EpochWorker, captured_in_flight
from checkpoint_protocols.vocabulary import Envelope
from tests.specs.message_traces import Numbered, counts, drawn, have_of, number_of
from tests.specs.tla import Step, record, set_of, traces_module

MODULE = "TraceEpochs"
LOOP = Graph("loop", (("s", "a"), ("a", "b"), ("b", "a")))
PROCESSES = "sab"
ROWS = 5
STEPS = 140


class Around(Numbered):
    """A source and a loop, with numbered epochs."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(protocol, LOOP, ROWS)

    def timers(self) -> list[Choice]:
        """Return the starts of epochs that are possible once the last id is durable."""
        naming = any(each.step is Progress.NAMING for each in opened(self).values())
        return [] if naming else super().timers()

    @property
    def tasks(self) -> dict[str, Process]:
        """Return all processes but the coordinator."""
        return {name: self.processes[ProcessId(name)] for name in PROCESSES}


def opened(world: Around) -> dict[int, Open]:
    """Return the coordinator's epochs, if it runs."""
    coordinator = world.processes[COORDINATOR].machine
    return coordinator.open if isinstance(coordinator, SnapshotCoordinator) else {}


def recorded(seed: int, protocol: Protocol = PROTOCOL) -> list[Step]:
    """Return a schedule of the world."""
    world = Around(protocol)
    driver = Driver(world, seed, fault_rate=0.03, timer_rate=0.15)
    steps: list[Step] = []
    for choice in drawn(driver, STEPS, ("restore",)):
        action = action_of(choice, world)
        driver.do(choice)
        if choice[0] in ("recover", "restore") and not world.recovering:
            action = ("restore" if world.plan and world.plan.parts else "succeed", "")
        if action:
            steps.append(Step(*action, {} if world.alarm else shown(world)))
    return steps


def action_of(choice: Choice, world: Around) -> tuple[str, str] | None:
    """Return the action of the choice in the specification, if there is one."""
    match choice:
        case ("read", _):
            return ("read", "")
        case ("replay", str(name)):
            return _taken(world.processes[ProcessId(name)].replay[0])
        case ("stored", str(name), int(number), "ok"):
            return _written(world, world.processes[ProcessId(name)].writes[number].key)
        case ("deliver", str(channel), int(position)):
            message = world.network.peek(ChannelId(channel), position).message
            return _delivered(world, message) if counts(message, world) else None
    return None


def _written(world: Around, key: Key) -> tuple[str, str] | None:
    """A commit counts unless there is a newer one."""
    if key[0] == "begun":
        world.begun.append(int(key[1]))
        return ("begin", "")
    newest = key[0] == "commit" and int(key[1]) > world.decided()
    return ("decide", str(world.ordinal(int(key[1])))) if newest else None


def _delivered(world: Around, message: Envelope) -> tuple[str, str] | None:
    number = world.ordinal(message.index)
    match message.kind:
        case "app":
            return _taken(message)
        case "begin":
            worker = world.processes[message.target].machine
            behind = isinstance(worker, EpochWorker) and worker.index < message.index
            return ("request", f"{message.target}{number}") if behind else None
    action = {ACK: "report", LATE: "late"}.get(message.kind)
    counted = action and _collecting(world, message.index)
    return (action, f"{message.source}{number}") if action and counted else None


def _collecting(world: Around, number: int) -> bool:
    coordinator = world.processes[COORDINATOR].machine
    return isinstance(coordinator, SnapshotCoordinator) and coordinator.is_collecting(number)


def _taken(message: Envelope) -> tuple[str, str]:
    return ("take", f"{message.source}{number_of(message.body)}")


# -- state of the machines ----------------------------------------------------------------------------------------


def shown(world: Around) -> dict[str, str]:
    """Return the state of the machines, as TLA+."""
    machines = {name: process.machine for name, process in world.tasks.items()}
    workers = {name: machine for name, machine in machines.items() if isinstance(machine, EpochWorker)}
    under_way = [number for number, each in opened(world).items() if each.step is not Progress.NAMING]
    return {
        "cursor": str(world.tasks["s"].state.cursor),
        "have": have_of(world.app, {name: process.state.have for name, process in world.tasks.items()}),
        "epoch": record({name: str(world.ordinal(worker.index)) for name, worker in workers.items()}),
        "balance": record({name: str(sum(worker.balance.values())) for name, worker in workers.items()}),
        "chan": _messages(world, _under_way(world)),
        "open": set_of(str(world.ordinal(number)) for number in under_way),
        "complete": _complete(world),
    }


def _under_way(world: Around) -> list[Envelope]:
    """Return the messages on the way, without undone ones, and those to replay."""
    sent = [item.message for queue in world.network.queues.values() for item in queue]
    replayed = [message for process in world.tasks.values() for message in process.replay]
    return [*(message for message in sent if counts(message, world)), *replayed]


def _messages(world: Around, messages: Iterable[Envelope]) -> str:
    return set_of(
        record(
            {
                "from": f'"{message.source}"',
                "to": f'"{message.target}"',
                "number": str(number_of(message.body)),
                "stamp": str(world.ordinal(message.index)),
            }
        )
        for message in messages
    )


def _complete(world: Around) -> str:
    number = world.decided()
    copies = {name: _copy(world, name, number) for name in PROCESSES}
    storages = {name: world.tasks[name].storage.readable() for name in PROCESSES}
    logged = [each for name in PROCESSES for each in captured_in_flight(ProcessId(name), Epoch(number), storages[name])]
    return record({"id": str(world.ordinal(number)), "copy": record(copies), "log": _messages(world, logged)})


def _copy(world: Around, name: str, number: int) -> str:
    """Return a process's state in an epoch."""
    key, storage = checkpoint_key(number), world.tasks[name].storage
    cut = storage.cuts[key] if number else world.initial
    balance = sum(by_number(storage.readable()[key].get("balance", {})).values()) if number else 0
    have = f"({have_of(world.app, {name: cut.have})}).{name}"
    return record({"cursor": str(cut.cursor), "have": have, "balance": str(balance)})


def trace_files(traces: Sequence[Sequence[Step]]) -> dict[str, str]:
    """Return the module that the trace specification reads."""
    return traces_module("RecordedEpochs", traces)


# -- planted bugs -------------------------------------------------------------------------------------------------


class CountsNothing(EpochCoordinator):
    """A coordinator that waits only for reports."""

    def _complete(self, opened: Open) -> bool:
        return not opened.missing


UNCOUNTED = replace(PROTOCOL, coordinator=CountsNothing)


def corrupted(trace: Sequence[Step], what: str) -> list[Step]:
    """Return the bare actions without one of them: an incomplete epoch is committed."""
    steps = [replace(step, shown={}) for step in trace]
    missing = {"unreported": "report", "uncounted": "late"}[what]
    decided = {step.node for step in steps if step.action == "decide"}
    del steps[next(n for n, step in enumerate(steps) if step.action == missing and step.node[1:] in decided)]
    return steps
