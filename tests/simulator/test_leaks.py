"""Every protocol erases records that no recovery needs, and the oracle finds those that stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

import checkpoint_lab as sim
from checkpoint_lab import message_world
from checkpoint_lab.message_world import MessageWorld, leaks
from checkpoint_lab.schedules import drive
from checkpoint_lab.violations import NeverErased
from checkpoint_protocols.graph import COORDINATOR
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.recovery import Protocol
from checkpoint_protocols.snapshots.partial_recovery import PartialTask
from checkpoint_protocols.vocabulary import Erase

SOUND = [protocol for protocol in MENU.values() if protocol.sound]

every_protocol = pytest.mark.parametrize("protocol", SOUND, ids=lambda protocol: protocol.name)


@pytest.fixture(autouse=True)
def at_every_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_world, "LEAKS_EVERY", 1)


def first_leak(protocol: Protocol, graph: str, seeds: int = 40) -> str:
    """The oracle's first violation."""
    for seed in range(seeds):
        error = drive(MessageWorld(protocol, sim.GRAPHS[graph], sim.Faults()), seed).error
        if isinstance(error, NeverErased):
            return str(error)
    return ""


def keeping(machine: type) -> type:
    """The machine without its erasures."""

    class Keeps(machine):  # type: ignore[misc]
        def handle(self, event: Event) -> list[Effect]:
            return [effect for effect in super().handle(event) if not isinstance(effect, Erase)]

    return Keeps


class NeverErasesTheOrder(PartialTask):
    def _erase_order(self, number: int) -> list[Effect]:
        return []


@every_protocol
def test_records_that_no_recovery_needs_are_erased(protocol: Protocol) -> None:
    for graph in ("diamond", "join"):
        assert first_leak(protocol, graph, seeds=12) == ""


@every_protocol
def test_a_worker_that_erases_nothing_is_found(protocol: Protocol) -> None:
    assert isinstance(protocol.worker, type)

    assert "O17" in first_leak(replace(protocol, worker=keeping(protocol.worker)), "diamond")


@pytest.mark.parametrize("name", ["markers", "epochs", "snapshots", "cyclic-snapshots", "partial-recovery"])
def test_a_coordinator_that_erases_nothing_is_found(name: str) -> None:
    protocol = MENU[name]
    assert isinstance(protocol.coordinator, type)

    found = first_leak(replace(protocol, coordinator=keeping(protocol.coordinator)), "pipeline")

    assert f"{COORDINATOR}:begun" in found


def test_order_records_that_stay_are_found() -> None:
    found = first_leak(replace(MENU["partial-recovery"], worker=NeverErasesTheOrder), "diamond")

    assert "k:order/" in found


def test_records_of_undone_epochs_are_erased_when_their_writer_restarts() -> None:
    """No process reads them, so no process could erase them."""
    gone = 0
    for seed in range(60):
        world = MessageWorld(MENU["snapshots"], sim.GRAPHS["diamond"], sim.Faults(4, 0, 0, 0, 0, 0, 0))
        drive(world, seed)
        gone += world.count.get("recovery", 0)
        for process in world.everybody:
            standing = {key[1] for key in process.storage.framed if key[0] == "checkpoint"}
            assert len(standing) <= 1, (seed, process.name, standing)

    assert gone > 30


def test_needed_records_are_no_leak() -> None:
    """Without its newest decision a job restarts from its start, so that record and its checkpoints are needed."""
    world = MessageWorld(MENU["snapshots"], sim.GRAPHS["pipeline"])
    drive(world, 1)
    decisions = [key for key in world.processes[COORDINATOR].storage.framed if key[0] == "commit"]

    assert decisions
    assert leaks(world) == []
