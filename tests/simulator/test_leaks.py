"""What no recovery can need any more is erased in the end, under every protocol; what is not is seen."""

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
    """The first complaint of the oracle."""
    for seed in range(seeds):
        error = drive(MessageWorld(protocol, sim.GRAPHS[graph], sim.Faults()), seed).error
        if isinstance(error, NeverErased):
            return str(error)
    return ""


def keeping(machine: type) -> type:
    """The machine, erasing nothing."""

    class Keeps(machine):  # type: ignore[misc]
        def handle(self, event: Event) -> list[Effect]:
            return [effect for effect in super().handle(event) if not isinstance(effect, Erase)]

    return Keeps


class NeverErasesTheOrder(PartialTask):
    def _erase_order(self, number: int) -> list[Effect]:
        return []


@every_protocol
def test_nothing_that_no_recovery_needs_stays(protocol: Protocol) -> None:
    for graph in ("diamond", "join"):
        assert first_leak(protocol, graph, seeds=12) == ""


@every_protocol
def test_a_worker_that_erases_nothing_is_seen(protocol: Protocol) -> None:
    assert isinstance(protocol.worker, type)

    assert "O17" in first_leak(replace(protocol, worker=keeping(protocol.worker)), "diamond")


@pytest.mark.parametrize("name", ["markers", "epochs", "snapshots", "cyclic-snapshots", "partial-recovery"])
def test_a_coordinator_that_erases_nothing_is_seen(name: str) -> None:
    protocol = MENU[name]
    assert isinstance(protocol.coordinator, type)

    found = first_leak(replace(protocol, coordinator=keeping(protocol.coordinator)), "pipeline")

    assert f"{COORDINATOR}:begun" in found


def test_order_records_that_stay_are_seen() -> None:
    found = first_leak(replace(MENU["partial-recovery"], worker=NeverErasesTheOrder), "diamond")

    assert "k:order/" in found


def test_records_of_an_undone_future_are_gone_when_their_writer_begins_again() -> None:
    """Nobody is shown them, so nobody could erase them."""
    gone = 0
    for seed in range(60):
        world = MessageWorld(MENU["snapshots"], sim.GRAPHS["diamond"], sim.Faults(4, 0, 0, 0, 0, 0, 0))
        drive(world, seed)
        gone += world.count.get("recovery", 0)
        for process in world.everybody:
            standing = {key[1] for key in process.storage.framed if key[0] == "checkpoint"}
            assert len(standing) <= 1, (seed, process.name, standing)

    assert gone > 30


def test_what_is_needed_is_not_called_a_leak() -> None:
    """Without its newest decision a job begins anew: that record is needed, and its checkpoints are."""
    world = MessageWorld(MENU["snapshots"], sim.GRAPHS["pipeline"])
    drive(world, 1)
    decisions = [key for key in world.processes[COORDINATOR].storage.framed if key[0] == "commit"]

    assert decisions
    assert leaks(world) == []
