"""The host of real rows with the executor in memory: every protocol is sound, and bugs of machine and host are caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

import checkpoint_lab as sim
from checkpoint_lab.executed_world import ExecutedWorld, Life, prepared
from checkpoint_lab.executor import Batch, Executor, KeyState, MemoryExecutor, Row, Saved
from checkpoint_lab.violations import ShownOutOfOrder, ShownTwice, Violation, WrongEffect, WrongOutput
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.message_machine import AnyMessageMachine
from checkpoint_protocols.recovery import Birth, Key
from checkpoint_protocols.vocabulary import CaptureState, Deliver, Drop, Received

SOUND = [name for name, protocol in MENU.items() if protocol.sound]
SEEDS = range(20)
LONG = sim.Scenario("markers", "pipeline", steps=120, inputs=20)
KILLED = replace(LONG, faults=False, crashes=(sim.Crash("a", 60), sim.Crash("k", 80)))


@pytest.mark.parametrize("protocol", SOUND)
def test_the_rows_of_a_sound_protocol_survive_every_failure(protocol: str) -> None:
    recoveries = 0
    for graph in sim.graphs_of(protocol):
        for seed in range(3):
            outcome = prepared(sim.Scenario(protocol, graph, seed, steps=60)).run(MemoryExecutor())
            recoveries += outcome.counts.get("recovery", 0)

            assert outcome.ok, f"{graph}, seed {seed}: {outcome.error}"
    assert recoveries > 4


@pytest.mark.parametrize("variant", MENU["wall-clock"].options["variant"].words)
def test_the_counter_example_is_condemned(variant: str) -> None:
    some = sim.Scenario("wall-clock", "pipeline", options={"variant": variant})
    outcomes = (prepared(replace(some, seed=seed)).run(MemoryExecutor()) for seed in range(60))

    assert any(isinstance(each.error, Violation) for each in outcomes)


@pytest.mark.parametrize("protocol", sorted(set(sim.NAMES) - set(MENU)))
def test_a_protocol_without_a_message_machine_is_refused_with_the_reason(protocol: str) -> None:
    with pytest.raises(sim.NotOnTheMenu, match=f"{protocol} has no machine for messages: "):
        prepared(sim.Scenario(protocol, "pipeline"))


# -- bugs of the host and of its executor: the machines have no rows, so only the verdict on rows finds these


class BeginsEmpty(MemoryExecutor):
    """A new operator does not get the state of its checkpoint."""

    def begin(self, process: ProcessId, keys: Sequence[KeyState]) -> None:
        super().begin(process, ())


class KeepsStateOverACrash(MemoryExecutor):
    """The operator continues with the state before the crash."""

    def kill(self, process: ProcessId) -> None: ...

    def begin(self, process: ProcessId, keys: Sequence[KeyState]) -> None:
        if process not in self.states:
            super().begin(process, keys)


class SavesTheFirstSnapshotOnly(MemoryExecutor):
    """Later records keep the snapshot of the first."""

    def save(self, process: ProcessId, key: Key, saved: Saved) -> None:
        first = next((each.snapshot for each in self.load(process).values() if each.snapshot), saved.snapshot)
        super().save(process, key, saved._replace(snapshot=saved.snapshot and first))


class RunsSegmentsBackwards(MemoryExecutor):
    """A micro-batch reads its segments in another order than the machine delivered them."""

    def run(self, process: ProcessId, segments: Sequence[str], marked: bool) -> Batch:
        batch = super().run(process, segments[::-1], marked)
        return batch._replace(outputs=batch.outputs[::-1])


class ShowsARowTwice(MemoryExecutor):
    """Appends the last row of a publication again."""

    def show(self, sink: ProcessId, rows: Sequence[Row]) -> None:
        super().show(sink, [*rows, rows[-1]])


class ForgetsARow(MemoryExecutor):
    """A publication lacks its first row."""

    def show(self, sink: ProcessId, rows: Sequence[Row]) -> None:
        super().show(sink, rows[1:])


HOST_BUGS: list[tuple[Callable[[], Executor], str, tuple[type[Violation], ...]]] = [
    (BeginsEmpty, "uncoordinated", (ShownOutOfOrder, WrongOutput)),
    (KeepsStateOverACrash, "epochs", (ShownOutOfOrder, WrongOutput)),
    (SavesTheFirstSnapshotOnly, "index-based", (ShownOutOfOrder, WrongOutput)),
    (RunsSegmentsBackwards, "synchronous-logging", (ShownOutOfOrder, WrongOutput, WrongEffect)),
    (ShowsARowTwice, "coordinated", (ShownTwice,)),
    (ForgetsARow, "snapshots", (WrongOutput,)),
]


@pytest.mark.parametrize(("executor", "protocol", "verdicts"), HOST_BUGS)
def test_a_bug_of_the_host_is_caught_by_the_rows(
    executor: Callable[[], Executor], protocol: str, verdicts: tuple[type[Violation], ...]
) -> None:
    scenarios = [replace(KILLED, protocol=protocol, seed=seed) for seed in SEEDS]
    caught = next(scenario for scenario in scenarios if not prepared(scenario).run(executor()).ok)

    assert isinstance(prepared(caught).run(executor()).error, verdicts)
    assert prepared(caught).run(MemoryExecutor()).ok


# -- bugs of machines


def planted(protocol: str, change: Callable[[AnyMessageMachine], None]) -> Iterable[Exception | None]:
    sound = MENU[protocol]

    def make(birth: Birth) -> AnyMessageMachine:
        machine = sound.worker(birth)
        change(machine)
        return machine

    for seed in SEEDS:
        scenario = replace(prepared(replace(LONG, protocol=protocol, seed=seed)), protocol=replace(sound, worker=make))
        yield scenario.run(MemoryExecutor()).error


def changed(machine: AnyMessageMachine, effects_of: Callable[[Event, list[Effect]], list[Effect]]) -> None:
    handle = machine.handle
    vars(machine)["handle"] = lambda event: effects_of(event, handle(event))


def drops_deliveries_after_a_capture(event: Event, effects: list[Effect]) -> list[Effect]:
    if not any(isinstance(each, CaptureState) for each in effects):
        return effects
    return [Drop(each.event, "planted") if isinstance(each, Deliver) else each for each in effects]


def delivers_before_the_capture(event: Event, effects: list[Effect]) -> list[Effect]:
    return sorted(effects, key=lambda each: not isinstance(each, Deliver))


def delivers_twice(event: Event, effects: list[Effect]) -> list[Effect]:
    again = isinstance(event, Received) and event.replayed
    return effects + [each for each in effects if again and isinstance(each, Deliver)]


@pytest.mark.parametrize(
    ("protocol", "bug"),
    [
        ("epochs", drops_deliveries_after_a_capture),
        ("epochs", delivers_before_the_capture),
        ("synchronous-logging", delivers_twice),
    ],
)
def test_a_bug_of_a_machine_is_caught(protocol: str, bug: Callable[[Event, list[Effect]], list[Effect]]) -> None:
    errors = planted(protocol, lambda machine: changed(machine, bug))

    assert any(isinstance(error, Violation) for error in errors)


def test_a_nondeterministic_machine_is_caught() -> None:
    """Its effects depend on more than its events, so the replay of the recorded trace differs."""
    count = iter(range(1_000_000))

    class Restless(MENU["markers"].worker):  # type: ignore[misc, name-defined]
        def handle(self, event: Event) -> list[Effect]:
            effects: list[Effect] = super().handle(event)
            return effects if next(count) < 60 else [*effects, Drop(event, "planted")]

    scenario = prepared(sim.Scenario("markers", "pipeline", 1, steps=60, faults=False))
    world = ExecutedWorld(MemoryExecutor(), replace(scenario.protocol, worker=Restless), scenario.graph, sim.NO_FAULTS)

    sim.drive(world, 1, 10)

    with pytest.raises(WrongEffect, match="and again"):
        for life in world.lives:
            life.judge()


def test_a_recorded_incarnation_replays_with_the_same_effects() -> None:
    scenario = prepared(sim.Scenario("markers", "diamond", 3))
    world = ExecutedWorld(MemoryExecutor(), scenario.protocol, scenario.graph, sim.hostile(3))

    assert sim.drive(world, 3, 60).ok
    assert sum(len(life.steps) for life in world.lives) > 50
    assert all(isinstance(life, Life) for life in world.lives)
