"""Protocols for loops work on a process that sends to itself; others refuse it."""

from __future__ import annotations

import pytest

import checkpoint_lab as sim
from checkpoint_lab.message_world import MessageWorld
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.menu import MENU

SELF_LOOP = Graph("self_loop", (("s", "a"), ("a", "a"), ("a", "k")))
LOOPING = [name for name, protocol in MENU.items() if protocol.sound and not protocol.needs.acyclic]
ACYCLIC = [name for name, protocol in MENU.items() if protocol.needs.acyclic]


@pytest.mark.parametrize("schedules", [40, pytest.param(400, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", LOOPING)
def test_every_protocol_for_loops_survives_failures_on_a_self_loop(name: str, schedules: int) -> None:
    report = sim.campaign(MENU[name], SELF_LOOP, range(schedules))

    assert not report.failures, report.failures[0].error
    assert report.counts["recovery"] > schedules / 2


@pytest.mark.parametrize("name", ACYCLIC)
def test_protocols_without_loops_refuse_a_self_loop(name: str) -> None:
    with pytest.raises(ProtocolViolation, match=r"needs an acyclic graph, self_loop has \['a->a'\]"):
        MessageWorld(MENU[name], SELF_LOOP)


def test_no_process_is_cut_off_from_itself() -> None:
    world = MessageWorld(MENU["markers"], SELF_LOOP, sim.Faults())

    cuts = {choice[1:] for choice in world.faults() if choice[0] == "cut"}

    assert {("a", "s"), ("a", "k")} <= cuts
    assert all(one != other for one, other in cuts)
