"""A recorded simulation replays with the same events, and any change of its file is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import checkpoint_lab as sim
from checkpoint_lab.recorded import Recording, difference, read_recording, recording
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.menu import MENU
from spark_ckpt.cli.app import exit_code
from spark_ckpt.errors import TraceInvalid

Captured = pytest.CaptureFixture[str]
SOUND = [name for name in sim.NAMES if name not in MENU or MENU[name].sound]
SEEDS = (2, 5)


def recorded(protocol: str, seed: int, folder: Path) -> tuple[sim.ScheduleOutcome, Recording]:
    """A run, and its recording as read from a file."""
    scenario = sim.Scenario(protocol, sim.graphs_of(protocol)[-1], seed)
    outcome, file = scenario.run(), folder / "run.jsonl"
    file.write_text(recording(scenario, outcome.trace).as_text())
    return outcome, read_recording(file)


@pytest.mark.parametrize("protocol", SOUND)
def test_a_recorded_run_of_every_protocol_replays_with_the_same_events(protocol: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        outcome, found = recorded(protocol, seed, tmp_path)

        assert (found.trace, found.moments) == (outcome.trace, outcome.moments)
        assert found.judged.error is None
        assert difference(found) is None


def test_a_condemned_run_is_condemned_for_the_same_reason_by_its_file(tmp_path: Path) -> None:
    condemned = 0
    for seed in range(25):
        outcome, found = recorded("wall-clock", seed, tmp_path)
        error = outcome.error and f"{type(outcome.error).__name__}: {str(outcome.error).splitlines()[0]}"

        assert found.judged.error == error
        assert difference(found) is None
        condemned += error is not None

    assert condemned > 0


def changed(lines: list[dict], number: int, **fields: object) -> str:
    """The file with changed fields in one line."""
    return "".join(f"{json.dumps({**line, **fields} if n == number else line)}\n" for n, line in enumerate(lines, 1))


def test_any_change_of_a_file_is_found(tmp_path: Path) -> None:
    _, found = recorded("epochs", 5, tmp_path)
    lines = [json.loads(line) for line in found.as_text().splitlines()]
    file, first = tmp_path / "other.jsonl", next(n for n, line in enumerate(lines[1:], 2) if line["moments"])

    def typed_errors_at(text: str) -> str:
        file.write_text(text)
        return difference(read_recording(file)) or "nothing"

    another = [[*lines[first - 1]["moments"][0][:3], "another label", -1]]
    assert typed_errors_at(changed(lines, first, moments=another)).startswith(f"line {first}:")
    assert typed_errors_at(changed(lines, len(lines), error="Orphan: never")).startswith(f"line {len(lines)}:")
    assert typed_errors_at(changed(lines, 1, protocol="markers")).startswith("line ")
    assert "NotPossible" in typed_errors_at(changed(lines, first, choice=["crash", "nobody"], moments=[]))
    assert typed_errors_at(changed([*lines[:-2], lines[-1]], 0)).startswith("line ")
    assert typed_errors_at(changed(lines, 0)) == "nothing"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "line "),
        (lambda text: "\n".join(text.splitlines()[1:]), "is no simulated run"),
        (lambda text: text.replace('"format":1', '"format":2', 1), "line 1: schedule.format"),
        (lambda text: text.replace('"edges":null', '"edges":[]', 1).replace("[]", '[["s","s"]]', 1), "graph"),
        (lambda text: "", "is no simulated run"),
        (lambda text: text.replace('"inputs":3', '"inputs":1000000000', 1), "line 1: schedule.inputs"),
        (lambda text: text.replace('"seed":2', '"seed":-2', 1), "line 1: schedule.seed"),
    ],
)
def test_a_damaged_file_is_refused_and_the_line_named(damage, says: str, tmp_path: Path) -> None:
    _, found = recorded("markers", 2, tmp_path)
    file = tmp_path / "damaged.jsonl"
    file.write_text(damage(found.as_text()))

    with pytest.raises(TraceInvalid, match=says):
        read_recording(file)


def test_a_custom_graph_is_in_the_file(tmp_path: Path) -> None:
    own = Graph("mine", (("s", "a"), ("a", "a"), ("a", "k")))
    scenario = sim.Scenario("epochs", "mine", 3, own=own)
    file = tmp_path / "run.jsonl"
    file.write_text(recording(scenario, scenario.run().trace).as_text())

    assert read_recording(file).begun.scenario.own == own
    assert difference(read_recording(file)) is None


def test_the_command_replays_its_recording(tmp_path: Path, capsys: Captured) -> None:
    file = str(tmp_path / "run.jsonl")
    assert exit_code(("simulate", "-p", "coordinated", "-g", "cycle", "--seed", "4", "--record", file)) == 0
    recorded_output = capsys.readouterr().out

    assert exit_code(("simulate", "--replay", file, "--diagram", str(tmp_path / "run.svg"))) == 0
    again = capsys.readouterr().out
    steps = [
        [line for line in each.splitlines() if line[:5].strip().isdecimal()][:10] for each in (recorded_output, again)
    ]
    assert steps[0] == steps[1] != []
    assert "all as recorded" in again
    assert (tmp_path / "run.svg").read_text().startswith("<svg")

    Path(file).write_text(Path(file).read_text().replace('"send"', '"sent"', 1))
    assert exit_code(("simulate", "--replay", file)) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--replay", "run.jsonl", "--seed", "4"), "--replay and --seed"),
        (("--record", "run.jsonl", "--schedules", "4"), "--record and --schedules"),
        (("--diagram", "run.svg", "--schedules", "4"), "--diagram and --schedules"),
        (("--record", "/nowhere/run.jsonl"), "--record /nowhere/run.jsonl"),
        (("--replay", "/nowhere/run.jsonl"), "/nowhere/run.jsonl: No such file"),
    ],
)
def test_options_that_exclude_each_other_are_refused(arguments: tuple[str, ...], says: str, capsys: Captured) -> None:
    assert exit_code(("simulate", *arguments)) == 2
    assert says in capsys.readouterr().err


def test_a_graph_with_too_many_paths_is_refused_in_a_recorded_run_too(tmp_path: Path, capsys: Captured) -> None:
    _, found = recorded("epochs", 2, tmp_path)
    lines = [json.loads(line) for line in found.as_text().splitlines()]
    edges = [[a, b] for a in "abcdefghijkl" for b in "abcdefghijkl" if a < b]
    file = tmp_path / "run.jsonl"
    file.write_text(changed(lines, 1, graph="mine", edges=edges))

    assert exit_code(("simulate", "--replay", str(file))) == 2
    assert "more than 1000 ways" in capsys.readouterr().err
