"""The workload that `spark-ckpt compare --store` takes from a job's store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from checkpoint_lab.recorded_job import RecordedJob, read_job
from spark_ckpt.epochs.records import GraphNode
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.store.location import Location
from spark_ckpt.store.stage_folder import Stages, record_stages
from spark_ckpt.store.store import Store
from tests.cli.cli_world import CommandLine
from tests.store.store_world import EDGE, OPERATOR, SINK, World

SOURCE, TOTALS, OUT, LOOP = "source/in", f"operator/{OPERATOR}", f"sink/{SINK}", f"edge/{EDGE}"
JOB = (
    GraphNode(id=SOURCE),
    GraphNode(id=TOTALS, inputs=(SOURCE, LOOP)),
    GraphNode(id=LOOP, inputs=(TOTALS,)),
    GraphNode(id=OUT, inputs=(TOTALS,)),
)
STRAIGHT = (GraphNode(id=SOURCE), GraphNode(id=TOTALS, inputs=(SOURCE,)), GraphNode(id=OUT, inputs=(TOTALS,)))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


def job(
    folder: Path, interval_ms: int = 5_000, graph: Sequence[GraphNode] = JOB, rows_in: int = 200, epochs: int = 4
) -> World:
    world = World(folder)
    world.begin()
    for number in range(epochs):
        world.clock.ms += interval_ms
        world.snapshot({f"key {number}": number})
        recorded = {"graph": graph, "rows_in": rows_in}
        world.commit(world.manifest().model_copy(update=recorded))
    return world


def recorded(*worlds: World, folder: Path | None = None) -> RecordedJob:
    stores = [world.store for world in worlds]
    return read_job(str(folder or stores[0].location.uri), stores, {})


def test_graph_rate_and_sizes_are_those_of_the_epochs(tmp_path: Path) -> None:
    world = job(tmp_path / "store")
    newest = world.store.log.manifest(4)
    state = sum(file.size_bytes for file in newest.operators[OPERATOR].files)
    staged = [file for epoch in (2, 3, 4) for file in world.store.log.manifest(epoch).outputs[SINK].files]

    found = recorded(world)

    assert set(found.graph.channels) == {
        "source:in->operator:totals",
        "operator:totals->edge:loop",
        "edge:loop->operator:totals",
        "operator:totals->sink:out",
    }
    assert (found.interval_ms, found.rows, found.epochs) == (5_000, 200, 4)
    assert found.state_bytes["operator:totals"] == state > 0
    assert found.row_bytes == sum(file.size_bytes for file in staged) / 3


def test_a_restart_between_two_epochs_is_no_interval(tmp_path: Path) -> None:
    world = job(tmp_path / "store")
    world.clock.ms += 3_600_000
    world.begin()
    world.snapshot({"late": 1})
    world.commit(world.manifest().model_copy(update={"graph": JOB, "rows_in": 200}))

    assert recorded(world).interval_ms == 5_000


def program(folder: Path, source: str = SOURCE) -> tuple[World, World]:
    """A program of two stages: `model` reads the output of `main`."""
    to_model, model_out = f"sink/{SINK}", "sink/predictions"
    main = (GraphNode(id=source), GraphNode(id=TOTALS, inputs=(source,)), GraphNode(id=to_model, inputs=(TOTALS,)))
    edge = f"source/{SINK}"
    model = (GraphNode(id=edge), GraphNode(id=TOTALS, inputs=(edge,)), GraphNode(id=model_out, inputs=(TOTALS,)))
    record_stages(Location(str(folder)), Stages(job="fraud", stages={"main": (), "model": ("main",)}))
    return job(folder / "main", graph=main), job(folder / "model", graph=model, rows_in=7)


def test_a_program_is_one_graph_of_its_stages(tmp_path: Path) -> None:
    found = recorded(*program(tmp_path), folder=tmp_path)

    assert found.name == "fraud"
    assert found.graph.channels == ("source:in->stage:main", "stage:main->stage:model", "stage:model->sink:predictions")
    assert set(found.state_bytes) == {"stage:main", "stage:model"}
    assert found.rows == 200


def test_a_source_with_the_name_of_a_later_stages_sink_stays_a_source(tmp_path: Path) -> None:
    found = recorded(*program(tmp_path, "source/predictions"), folder=tmp_path)

    assert found.graph.channels == (
        "source:predictions->stage:main",
        "stage:main->stage:model",
        "stage:model->sink:predictions",
    )


def compared(command: CommandLine, store: Path, *more: str) -> dict[str, dict[str, float]]:
    rows = command("compare", "--store", store, "--runs", "1", "--json", *more).json
    return {row["protocol"]: row for row in rows}


def test_figures_are_in_the_jobs_own_units(command: CommandLine, tmp_path: Path) -> None:
    job(tmp_path / "usual", graph=STRAIGHT)
    job(tmp_path / "slow", 10_000, STRAIGHT)
    job(tmp_path / "busy", graph=STRAIGHT, rows_in=2_000)
    usual, slow, busy = (compared(command, tmp_path / name) for name in ("usual", "slow", "busy"))

    for name in ("snapshots", "index-based", "sender-logging"):
        for column in ("shown after ms", "recovery ms", "held ms"):
            assert slow[name][column] == pytest.approx(2 * usual[name][column], abs=0.2)
        assert busy[name]["read again"] == pytest.approx(10 * usual[name]["read again"], abs=1)
    assert slow["snapshots"]["log bytes"] == usual["snapshots"]["log bytes"]
    assert busy["sender-logging"]["log bytes"] > usual["sender-logging"]["log bytes"]


def test_the_table_names_recorded_and_assumed_values(command: CommandLine, tmp_path: Path) -> None:
    job(tmp_path / "store")

    output = command("compare", "--store", tmp_path / "store", "--runs", "1").out

    assert "one every 5.0 s" in output
    assert "200 of a source in an epoch" in output
    assert "Assumed: a hop" in output
    assert "coordinated" in output


def test_a_named_process_is_killed_in_the_jobs_time(command: CommandLine, tmp_path: Path) -> None:
    job(tmp_path / "store")

    output = command("compare", "--store", tmp_path / "store", "--runs", "1", "--crash", "operator:totals@6000")

    assert "killed: operator:totals at 6000 ms" in output.out


@pytest.mark.parametrize("epochs", [0, 1])
def test_too_few_epochs_are_refused(tmp_path: Path, epochs: int) -> None:
    world = job(tmp_path / "store", epochs=epochs)

    with pytest.raises(ConfigInvalid, match="no two epochs in a row") as refused:
        recorded(world)
    assert "take two epochs" in str(refused.value)


def test_an_outbox_has_no_protocol_to_compare(command: CommandLine, tmp_path: Path) -> None:
    Store.open(str(tmp_path / "store"), "orders", kind="outbox")

    answer = command("compare", "--store", tmp_path / "store")

    assert answer.code == 2
    assert "outbox 'orders'" in answer.err


@pytest.mark.parametrize("option", [("--graph", "pair"), ("--state-bytes", "1"), ("--interval-ms", "5")])
def test_options_that_the_store_has_recorded_are_refused(
    command: CommandLine, tmp_path: Path, option: tuple[str, str]
) -> None:
    answer = command("compare", "--store", tmp_path / "store", *option)

    assert answer.code == 2
    assert f"{option[0]} and --store" in answer.err
