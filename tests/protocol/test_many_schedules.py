"""Random schedules of every protocol, over all graphs it runs on, with every kind of fault: 100, or a given number.

Seeds are fixed, so a failure can be repeated: `spark-ckpt simulate --protocol P --graph G --seed N`.
Ten thousand: `SPARK_CKPT_SCHEDULES=10000 pytest tests/protocol/test_many_schedules.py`, ten minutes of one processor.
A million: `spark-ckpt simulate --protocol P --graph G --schedules 1000000 --processes 2`.
"""

from __future__ import annotations

import os

import pytest

import checkpoint_lab as sim
from checkpoint_protocols.menu import MENU
from tests.simulator.eager import run_long

SCHEDULES = int(os.environ.get("SPARK_CKPT_SCHEDULES", "100"))
PROCESSES = 1 if SCHEDULES <= 1000 else os.cpu_count() or 1
"""One for few schedules: starting a process takes longer than the schedules of a graph."""
SOUND = [name for name, protocol in MENU.items() if protocol.sound]
OTHERS = [pytest.param(name, marks=pytest.mark.long) for name in ("spark", "lease")]
"""In the gate: `tests/simulator/test_spark_world.py` and `test_lease_world.py`."""


@pytest.mark.parametrize("protocol", [*OTHERS, *SOUND])
def test_no_schedule_of_many_is_condemned(protocol: str) -> None:
    graphs = sim.graphs_of(protocol)
    schedules = recoveries = 0
    for number, graph in enumerate(graphs):
        share = SCHEDULES // len(graphs) + (number < SCHEDULES % len(graphs))
        report = sim.many(sim.Scenario(protocol, graph, seed=1_000_000), share, processes=PROCESSES)
        assert not report.failures, f"{protocol} on {graph}, seed {report.failures[0].seed}: {report.failures[0].error}"
        schedules += report.schedules
        recoveries += report.counts["crash"]

    assert schedules == SCHEDULES
    assert recoveries > SCHEDULES / 4


@pytest.mark.parametrize("protocol", SOUND)
def test_no_long_schedule_is_condemned(protocol: str) -> None:
    graphs = sim.graphs_of(protocol)
    outcomes = [
        run_long(MENU[protocol], sim.GRAPHS[graphs[seed % len(graphs)]], seed) for seed in range(SCHEDULES // 25)
    ]

    assert [(outcome.seed, outcome.error) for outcome in outcomes if not outcome.ok] == []


def test_the_counter_example_is_condemned_often() -> None:
    report = sim.many(sim.Scenario("wall-clock", "diamond"), 500)

    assert len(report.failures) > 50
