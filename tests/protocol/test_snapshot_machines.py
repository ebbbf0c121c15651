"""The snapshot machines alone: total tables, every cell reached, ids used once, records written before messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest

from checkpoint_lab import Faults, drive
from checkpoint_protocols.graph import COORDINATOR, Graph, channel_between, control_between
from checkpoint_protocols.ids import Incarnation, ProcessId, TimerId
from checkpoint_protocols.machine import INVALID, Drop, Effect, InvalidTransition, InvariantBroken, missing_cells
from checkpoint_protocols.recovery import Birth, Protocol, ProtocolSettings, Records
from checkpoint_protocols.snapshots import acyclic as snapshots
from checkpoint_protocols.snapshots import cyclic as cyclic_snapshots
from checkpoint_protocols.snapshots import epochs, markers, partial_recovery, stop_the_world, wall_clock
from checkpoint_protocols.snapshots.coordinator import SnapshotCoordinator
from checkpoint_protocols.vocabulary import (
    OUT,
    AppSent,
    Commanded,
    Envelope,
    Erase,
    Json,
    Note,
    Received,
    Release,
    Send,
    SetTimer,
    SinkReplied,
    SinkTransaction,
    Stored,
    StoreRecord,
    TimerElapsed,
)
from tests.protocol.audited import AuditedWorld, graph_in_turn

ALL = [
    each.PROTOCOL
    for each in (stop_the_world, markers, epochs, snapshots, cyclic_snapshots, partial_recovery, wall_clock)
]
LOOP = Graph("loop", (("s", "a"), ("t", "a"), ("a", "b"), ("b", "a"), ("b", "k")))
JOIN = Graph("join", (("s", "a"), ("t", "a"), ("a", "k")))
START = Commanded("start", {"local_ms": 0})

WORKERS = {
    "baseline": stop_the_world.StoppingWorker,
    "P0": markers.MarkerWorker,
    "P1": epochs.EpochWorker,
    "P2": wall_clock.ClockWorker,
    "P2 counted": wall_clock.CountedWorker,
    "P5a": snapshots.SnapshotTask,
    "P5b": cyclic_snapshots.CyclicTask,
    "P5c": partial_recovery.PartialTask,
}
COORDINATORS = {
    "all": SnapshotCoordinator,
    "baseline": stop_the_world.StoppingCoordinator,
    "P1": epochs.EpochCoordinator,
    "P2 broadcast": wall_clock.BroadcastCoordinator,
    "P2 clock": wall_clock.ClockCoordinator,
    "P2 counted": wall_clock.CountedCoordinator,
}

each_machine = pytest.mark.parametrize("machine", [*WORKERS.values(), *COORDINATORS.values()], ids=lambda m: m.__name__)
each_worker = pytest.mark.parametrize("worker", WORKERS.values(), ids=lambda m: m.__name__)


def birth(me: str, graph: Graph = JOIN, records: Records | None = None, incarnation: int = 1) -> Birth:
    return Birth(ProcessId(me), graph, Incarnation(incarnation), {}, ProtocolSettings(), None, records or {})


def started(machine: Callable[[Birth], Any], me: str, graph: Graph = JOIN) -> Any:
    """A machine that has handled its start."""
    made = machine(birth(me, graph))
    made.handle(START)
    return made


def control(source: str, target: str, kind: str, index: int, body: Json = None) -> Received:
    names = ProcessId(source), ProcessId(target)
    return Received(control_between(*names), Envelope(*names, Incarnation(1), 0, index, kind, {}, body))


def on(source: str, target: str, kind: str, index: int, body: Json = 0, seq: int = 0) -> Received:
    names = ProcessId(source), ProcessId(target)
    return Received(channel_between(*names), Envelope(*names, Incarnation(1), seq, index, kind, {}, body))


def sent(effects: list[Effect], kind: str) -> list[int]:
    """Indices of the sent messages of a kind."""
    return [effect.message.index for effect in effects if isinstance(effect, Send) and effect.message.kind == kind]


# -- tables ------------------------------------------------------------------------------------------------------------


@each_machine
def test_every_phase_and_event_has_a_cell(machine: Any) -> None:
    assert missing_cells(machine) == []
    assert all(callable(getattr(machine, cell)) for cell in machine.TABLE.values() if isinstance(cell, str))


@each_machine
def test_the_kinds_of_messages_name_handlers(machine: Any) -> None:
    assert all(callable(getattr(machine, cell)) for cell in machine.MESSAGES.values())


# -- every cell --------------------------------------------------------------------------------------------------------


def replaying() -> Any:
    """A merge that restarts from the initial state and has two receipts to replay."""
    order = {("order", f"{n:012d}"): {"incarnation": 1, "index": 0, "channel": "s->a"} for n in (1, 2)}
    made = partial_recovery.PartialTask(birth("a", records=order))
    made.handle(START)
    return made


def after(machine: Any, *events: Any) -> Any:
    for event in events:
        machine.handle(event)
    return machine


PLACES: dict[Enum, Callable[[], Any]] = {
    stop_the_world.P.STARTING: lambda: stop_the_world.StoppingWorker(birth("a")),
    stop_the_world.P.RUNNING: lambda: started(stop_the_world.StoppingWorker, "a"),
    stop_the_world.P.DRAINING: lambda: after(started(stop_the_world.StoppingWorker, "a"), on("s", "a", "marker", 1)),
    stop_the_world.P.STOPPED: lambda: after(
        started(stop_the_world.StoppingWorker, "a"), on("s", "a", "marker", 1), on("t", "a", "marker", 1)
    ),
    markers.P.STARTING: lambda: markers.MarkerWorker(birth("a")),
    markers.P.IDLE: lambda: started(markers.MarkerWorker, "a"),
    markers.P.RECORDING: lambda: after(started(markers.MarkerWorker, "a"), on("s", "a", "marker", 1)),
    epochs.P.STARTING: lambda: epochs.EpochWorker(birth("a")),
    epochs.P.RUNNING: lambda: after(started(epochs.EpochWorker, "a"), control("coordinator", "a", "begin", 1)),
    wall_clock.P.STARTING: lambda: wall_clock.ClockWorker(birth("a")),
    wall_clock.P.RUNNING: lambda: started(wall_clock.ClockWorker, "a"),
    snapshots.P.STARTING: lambda: snapshots.SnapshotTask(birth("a")),
    snapshots.P.RUNNING: lambda: started(snapshots.SnapshotTask, "a"),
    snapshots.P.ALIGNING: lambda: after(started(snapshots.SnapshotTask, "a"), on("s", "a", "barrier", 1)),
    cyclic_snapshots.P.STARTING: lambda: cyclic_snapshots.CyclicTask(birth("a", LOOP)),
    cyclic_snapshots.P.RUNNING: lambda: started(cyclic_snapshots.CyclicTask, "a", LOOP),
    cyclic_snapshots.P.ALIGNING: lambda: after(
        started(cyclic_snapshots.CyclicTask, "a", LOOP), on("s", "a", "barrier", 1)
    ),
    cyclic_snapshots.P.LOGGING: lambda: after(
        started(cyclic_snapshots.CyclicTask, "a", LOOP), on("s", "a", "barrier", 1), on("t", "a", "barrier", 1)
    ),
    partial_recovery.P.STARTING: lambda: partial_recovery.PartialTask(birth("a")),
    partial_recovery.P.REPLAYING: replaying,
    partial_recovery.P.RUNNING: lambda: started(partial_recovery.PartialTask, "a"),
    partial_recovery.P.ALIGNING: lambda: after(started(partial_recovery.PartialTask, "a"), on("s", "a", "barrier", 1)),
    partial_recovery.P.ORDERING: lambda: after(
        started(partial_recovery.PartialTask, "a"), on("s", "a", "app", 0, "x", 1)
    ),
}
"""A machine of task `a` in each phase."""


def event_of(name: str, phase: Enum) -> Any:
    """An event of that name, or a message of that kind, that is valid except for the phase."""
    match name:
        case "app":
            return on("s" if phase is partial_recovery.P.REPLAYING else "t", "a", "app", 0, "x", 1)
        case "barrier" if phase is cyclic_snapshots.P.LOGGING:
            return on("b", "a", "barrier", 1)
        case "marker" if phase is stop_the_world.P.STOPPED:
            return on("t", "a", "marker", 2)
        case "barrier" | "marker":
            return on("s" if phase is partial_recovery.P.REPLAYING else "t", "a", name, 1)
        case "begin":
            return control("coordinator", "a", "begin", 2)
        case "commit" | "abort":
            return control("coordinator", "a", name, 1)
    return {
        "Commanded": START,
        "AppSent": AppSent(channel_between("a", "b" if isinstance(phase, cyclic_snapshots.P) else "k"), "x"),
        "Stored": Stored("checkpoint 1", ok=True),
        "SinkReplied": SinkReplied("a/1/0-1", ok=True),
        "TimerElapsed": TimerElapsed("checkpoint", TimerId(1), 1000),
    }[name]


def every_cell() -> list[Any]:
    """(phase, event or kind, whether it is allowed)."""
    found = []
    for phase, make in PLACES.items():
        machine = make()
        assert machine.phase is phase
        events = [event for event in machine.EVENTS if event is not Received]
        found += [(phase, event.__name__, machine.TABLE[phase, event] is not INVALID) for event in events]
        found += [(phase, kind, (phase, kind) in machine.MESSAGES) for kind in _kinds(machine)]
    return found


def _kinds(machine: Any) -> list[str]:
    return sorted({kind for _, kind in machine.MESSAGES})


def is_handled(phase: Enum, name: str) -> bool:
    """The machine handles the event or message in that phase. If it refuses it, nothing has changed."""
    machine = PLACES[phase]()
    before = json.dumps(machine.record())
    try:
        effects = machine.handle(event_of(name, phase))
    except InvalidTransition:
        assert (machine.phase, json.dumps(machine.record())) == (phase, before)
        return False
    return not any(isinstance(effect, Drop) for effect in effects)


def test_every_cell_does_what_the_table_says() -> None:
    cells = every_cell()

    assert len(cells) > 150
    assert [cell for cell in cells if is_handled(*cell[:2]) != cell[2]] == []


def test_a_message_in_an_impossible_phase_is_refused() -> None:
    """A second barrier on an input, a barrier too early on the back edge, and a message for workers only."""
    aligning = PLACES[snapshots.P.ALIGNING]()
    running, logging = PLACES[cyclic_snapshots.P.RUNNING](), PLACES[cyclic_snapshots.P.LOGGING]()
    coordinator = collecting(SnapshotCoordinator)

    for machine, event in (
        (aligning, on("s", "a", "barrier", 1)),
        (running, on("b", "a", "barrier", 1)),
        (logging, on("s", "a", "barrier", 1)),
        (coordinator, control("s", "coordinator", "commit", 1)),
    ):
        with pytest.raises(InvalidTransition):
            machine.handle(event)


# -- the next incarnation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ALL, ids=lambda protocol: protocol.name)
def test_a_machine_made_from_a_record_equals_the_one_that_wrote_it(protocol: Protocol) -> None:
    """`record` contains all that `__init__` needs."""
    for seed in range(12):
        graph = graph_in_turn(protocol, seed)
        world = AuditedWorld(protocol, graph, Faults(), 3, settings=ProtocolSettings())
        world.audits = []
        drive(world, seed, 60)
        for process in world.everybody:
            assert process.machine is not None and protocol.coordinator is not None
            now = json.loads(json.dumps(process.machine.record()))
            make = protocol.coordinator if process.name == COORDINATOR else protocol.worker
            records = process.storage.readable()
            again = make(Birth(process.name, graph, world.incarnation, world.table, ProtocolSettings(), now, records))
            assert json.loads(json.dumps(again.record())) == now


# -- barriers ----------------------------------------------------------------------------------------------------------


def test_a_stopped_process_sends_again_after_the_decision_on_its_own_snapshot() -> None:
    """Decisions overtake each other: one on an older snapshot does not let it send."""
    stopped = after(started(stop_the_world.StoppingWorker, "a"), control("coordinator", "a", "begin", 2))

    assert Release(OUT) not in stopped.handle(control("coordinator", "a", "commit", 1))
    assert Release(OUT) in stopped.handle(control("coordinator", "a", "abort", 2))


def test_a_second_marker_of_a_channel_is_refused() -> None:
    draining = PLACES[stop_the_world.P.DRAINING]()

    with pytest.raises(InvalidTransition, match="markers are awaited on"):
        draining.handle(on("s", "a", "marker", 1))


def test_a_newer_barrier_ends_the_alignment_and_an_older_one_is_dropped() -> None:
    task = PLACES[snapshots.P.ALIGNING]()

    assert Release(channel_between("s", "a")) in task.handle(on("t", "a", "barrier", 2))
    assert task.aligning == 2
    (dropped,) = task.handle(on("s", "a", "barrier", 1))
    assert isinstance(dropped, Drop)
    assert sent(task.handle(on("s", "a", "barrier", 2)), "barrier") == [2]


def test_a_barrier_between_an_abandoned_snapshot_and_a_newer_one_is_dropped() -> None:
    """The task aligns snapshot 2 and never saw snapshot 1."""
    task = after(started(snapshots.SnapshotTask, "a"), on("s", "a", "barrier", 2))

    (dropped,) = task.handle(on("t", "a", "barrier", 1))

    assert isinstance(dropped, Drop)
    assert task.aligning == 2


def test_a_barrier_that_overtakes_messages_breaks_an_invariant() -> None:
    """The sender had sent two messages, and none was delivered: the channel is not FIFO, or lost them."""
    with pytest.raises(InvariantBroken, match="what came before a barrier was delivered"):
        started(snapshots.SnapshotTask, "a").handle(on("s", "a", "barrier", 1, body=2))


# -- sinks -------------------------------------------------------------------------------------------------------------


@each_worker
def test_a_sink_asks_again_when_its_transaction_is_refused(worker: Any) -> None:
    sink = started(worker, "k")

    (again,) = sink.handle(SinkReplied("k/3/2-5", ok=False))

    assert (again.transaction, again.first, again.last) == ("k/3/2-5", 2, 5)
    assert isinstance(again, SinkTransaction)


# -- the coordinator ---------------------------------------------------------------------------------------------------


def timer_in(effects: list[Effect], name: str) -> Any:
    """The event of the timer of that name."""
    return next(effect.elapsed for effect in effects if isinstance(effect, SetTimer) and effect.name == name)


def naming(machine: Any, records: Records | None = None) -> Any:
    """A coordinator that is writing an id, and the record that it writes."""
    made = machine(birth("coordinator", records=records))
    effects = made.handle(timer_in(made.handle(START), "checkpoint"))
    return made, next(effect for effect in effects if isinstance(effect, StoreRecord))


def collecting(machine: Any) -> Any:
    made, store = naming(machine)
    made.handle(Stored(store.token, ok=True))
    return made


def deciding() -> Any:
    """A coordinator that has all answers and is writing its decision, and the snapshot's timeout."""
    made, store = naming(SnapshotCoordinator)
    timeout = timer_in(made.handle(Stored(store.token, ok=True)), "timeout")
    for process in JOIN.processes:
        made.handle(control(process, "coordinator", "ack", 1))
    return made, timeout


def test_an_id_is_sent_after_it_is_durable() -> None:
    coordinator = SnapshotCoordinator(birth("coordinator"))
    effects = coordinator.handle(timer_in(coordinator.handle(START), "checkpoint"))

    assert not any(isinstance(effect, Send) for effect in effects)
    assert sent(coordinator.handle(Stored("begun 1", ok=True)), "begin") == [1, 1]


def test_ids_are_not_used_again_after_an_abort_or_a_crash() -> None:
    """Rule G3: the record of the id outlives the coordinator, whether or not the snapshot completed."""
    coordinator, store = naming(SnapshotCoordinator)
    assert store.key == ("begun", "000000000001")
    timeout = timer_in(coordinator.handle(Stored("begun 1", ok=True)), "timeout")
    assert sent(coordinator.handle(timeout), "abort") == [1, 1, 1, 1]

    _, following = naming(SnapshotCoordinator, {store.key: store.record})
    assert following.key == ("begun", "000000000002")


def test_an_id_that_could_not_be_written_is_skipped_and_never_sent() -> None:
    """The next incarnation would use id 1 again, and a worker that knew of its abort would refuse it."""
    coordinator, store = naming(SnapshotCoordinator)
    effects = coordinator.handle(Stored(store.token, ok=False))

    assert effects == [Note("aborted", "1: begun could not be written")]
    assert coordinator.newest == 1
    assert coordinator.phase.name == "IDLE"


def test_a_timeout_does_not_abort_a_snapshot_whose_decision_is_being_written() -> None:
    """Its decision record may be durable already."""
    coordinator, timeout = deciding()

    assert coordinator.handle(timeout) == []
    assert sent(coordinator.handle(Stored("commit 1", ok=True)), "commit") == [1, 1, 1, 1]


def test_a_decision_that_could_not_be_written_is_an_abort() -> None:
    coordinator, _ = deciding()

    assert sent(coordinator.handle(Stored("commit 1", ok=False)), "abort") == [1, 1, 1, 1]


def test_a_second_incarnation_repeats_the_newest_decision_and_erases_older_ones() -> None:
    records = {(table, f"{n:012d}"): {"incarnation": 1, "index": n} for table in ("begun", "commit") for n in (1, 2)}
    effects = SnapshotCoordinator(birth("coordinator", records=records)).handle(START)

    assert sent(effects, "commit") == [2, 2, 2, 2]
    erased = {("begun", "000000000001"), ("begun", "000000000002"), ("commit", "000000000001")}
    assert {key for effect in effects if isinstance(effect, Erase) for key in effect.keys} == erased


def test_an_epoch_waits_for_every_report_though_the_balance_is_zero() -> None:
    """Example T1."""
    coordinator = collecting(epochs.EpochCoordinator)

    effects = [coordinator.handle(control(p, "coordinator", "ack", 1, 0)) for p in JOIN.processes]

    assert [bool(each) for each in effects] == [False, False, False, True]


def test_more_captured_messages_than_were_in_flight_break_an_invariant() -> None:
    coordinator = collecting(epochs.EpochCoordinator)
    for process in JOIN.processes[:-1]:
        coordinator.handle(control(process, "coordinator", "ack", 1, 0))

    with pytest.raises(InvariantBroken, match="no more is captured"):
        coordinator.handle(control(JOIN.processes[-1], "coordinator", "ack", 1, -1))


def test_a_coordinator_without_a_decision_sends_none() -> None:
    assert sent(SnapshotCoordinator(birth(COORDINATOR)).handle(START), "commit") == []


# -- the order of receipts ---------------------------------------------------------------------------------------------


def test_the_order_of_receipts_ends_at_the_first_gap() -> None:
    records = {("order", f"{n:012d}"): {"channel": channel} for n, channel in ((1, "s->a"), (2, "t->a"), (4, "s->a"))}

    assert list(partial_recovery.order_after(0, records)) == ["s->a", "t->a"]
    assert list(partial_recovery.order_after(1, records)) == ["t->a"]


def test_the_order_before_a_decided_cut_is_erased() -> None:
    machine = started(partial_recovery.PartialTask, "a")
    for seq in (1, 2):
        after(machine, on("s", "a", "app", 0, "x", seq), Stored(f"order {seq}", True))
    after(machine, on("s", "a", "barrier", 1, 2), on("t", "a", "barrier", 1), Stored("checkpoint 1", True))

    erased = machine.handle(control("coordinator", "a", "commit", 1))

    assert Erase((("order", f"{1:012d}"), ("order", f"{2:012d}"))) in erased
