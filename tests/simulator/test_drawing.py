"""Graphs, times, options and clocks drawn from a seed are of many shapes, and the same for the same seed."""

from __future__ import annotations

import pytest

import checkpoint_lab as sim
from checkpoint_protocols.menu import MENU

SOUND = [name for name, protocol in MENU.items() if protocol.sound]


@pytest.mark.parametrize("worlds", [10, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", SOUND)
def test_no_drawn_world_breaks_a_promise(name: str, worlds: int) -> None:
    for seed in range(worlds):
        outcome = sim.drive(sim.drawn_world(MENU[name], seed), seed)

        assert outcome.ok, f"seed {seed}: {outcome.error}"


def test_seeds_differ_in_everything_that_is_drawn() -> None:
    worlds = [sim.drawn_world(MENU["epochs"], seed) for seed in range(80)]

    assert len({world.graph.edges for world in worlds}) > 40
    assert 10 < sum(bool(world.graph.back_edges) for world in worlds) < 70
    assert len({world.settings.interval_ms for world in worlds}) == 3
    assert any(world.settings.options for world in worlds)
    assert len({process.clock for world in worlds for process in world.everybody}) > 10


def test_a_seed_is_one_world() -> None:
    traces = {sim.drive(sim.drawn_world(MENU["markers"], 11), 11).trace for _ in range(2)}

    assert len(traces) == 1


def test_protocols_without_loops_get_none() -> None:
    graphs = [sim.drawn_world(MENU["snapshots"], seed).graph for seed in range(60)]

    assert not [graph for graph in graphs if graph.back_edges]
