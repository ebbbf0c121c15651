"""The machines of the simulator run on Spark: queries, Parquet files, Delta tables, and a process that is killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import checkpoint_lab as sim
from checkpoint_lab.executed_world import prepared
from checkpoint_lab.executor import MemoryExecutor
from checkpoint_lab.spark_executor import SparkExecutor
from checkpoint_lab.violations import Violation
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.snapshots import wall_clock
from spark_ckpt.cli.app import exit_code

SHORT = (
    ("markers", "pipeline"),
    ("index-based", "pair"),
    ("synchronous-logging", "pipeline"),
)
LONG = [(name, graph) for name in MENU for graph in ("pipeline", "diamond", "cycle") if graph in sim.graphs_of(name)]


def run(spark: SparkSession, folder: Path, scenario: sim.Scenario) -> sim.ScheduleOutcome:
    executor = SparkExecutor(spark, folder)
    try:
        return prepared(scenario).run(executor)
    finally:
        executor.close()


@pytest.mark.spark
@pytest.mark.long  # in the gate: the command below has a crash, too; tests/simulator/test_executed_world.py
@pytest.mark.parametrize(("protocol", "graph"), SHORT)
def test_the_rows_survive_a_crash_on_spark(spark: SparkSession, tmp_path: Path, protocol: str, graph: str) -> None:
    crashes = (sim.Crash("k", 18),)
    scenario = sim.Scenario(protocol, graph, seed=2, steps=24, inputs=2, crashes=crashes, faults=False)

    outcome = run(spark, tmp_path / "tables", scenario)

    assert outcome.ok, outcome.error
    assert outcome.counts["recovery"] == 1
    assert not spark.streams.active


def in_memory(scenario: sim.Scenario) -> sim.ScheduleOutcome:
    return prepared(scenario).run(MemoryExecutor())


# `tests/simulator/test_executed_world.py` is the fast test: the same host, with the operators in memory
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize(("protocol", "graph"), LONG)
def test_every_protocol_survives_a_crash_on_spark(
    spark: SparkSession, tmp_path: Path, protocol: str, graph: str
) -> None:
    coordinators = (sim.Crash("coordinator", 22),) if MENU[protocol].coordinator else ()
    scenario = sim.Scenario(protocol, graph, seed=1, crashes=(sim.Crash("a", 15), *coordinators), faults=False)

    outcome = run(spark, tmp_path / "tables", scenario)

    assert outcome.counts["crash"] == len(scenario.crashes)
    # the counter-example promises nothing: its oracle may condemn it, on Spark for the same reason as in memory
    assert outcome.ok or protocol == "wall-clock", outcome.error
    assert (outcome.trace, str(outcome.error)) == (in_memory(scenario).trace, str(in_memory(scenario).error))


# in the gate: tests/simulator/test_executed_world.py
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("variant", wall_clock.PROTOCOL.options["variant"].words)
def test_the_counter_example_is_condemned_on_spark(spark: SparkSession, tmp_path: Path, variant: str) -> None:
    some = sim.Scenario("wall-clock", "pipeline", options={"variant": variant})
    condemned = next(each for each in (replace(some, seed=seed) for seed in range(100)) if not in_memory(each).ok)

    outcome = run(spark, tmp_path / "tables", condemned)

    assert isinstance(outcome.error, Violation)
    assert str(outcome.error) == str(in_memory(condemned).error)


@pytest.mark.spark
def test_the_command_runs_a_protocol_on_spark(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = tmp_path / "tables"
    arguments = ("simulate", "-p", "epochs", "-g", "pair", "--steps", "8", "--inputs", "2", "--no-faults")

    assert exit_code([*arguments, "--crash", "k@5", "--on-spark", str(tables)]) == 0

    printed = capsys.readouterr().out
    assert "verdict: exactly as without failures" in printed
    assert "micro-batches" in printed
    assert (tables / "sinks" / "k" / "_delta_log").is_dir()
