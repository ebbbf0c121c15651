"""`spark-ckpt trace`: story, diagram and verdict of a recorded run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import checkpoint_lab as sim
from spark_ckpt.cli.app import exit_code
from tests.trace.recording import Recording

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the recordings of a simulated job's drivers, of which some die."""
    recording = Recording()
    assert sim.run_spark(1, recording.core_of).ok
    recording.write(tmp_path / "traces")
    return tmp_path / "traces"


def out(capsys: Captured, *arguments: str, code: int = 0) -> str:
    assert exit_code(arguments) == code
    return capsys.readouterr().out


def test_a_recorded_run_is_printed_drawn_and_accepted(capsys: Captured, folder: Path, tmp_path: Path) -> None:
    printed = out(capsys, "trace", str(folder), "--diagram", str(tmp_path / "run.html"))

    assert "decide   epoch 1, initial" in printed
    assert "the rules answer as recorded: " in printed
    assert "epoch 1, initial" in (tmp_path / "run.html").read_text()


def test_one_incarnation_can_be_inspected(capsys: Captured, folder: Path) -> None:
    [first, *_] = sorted(folder.iterdir())
    printed = json.loads(out(capsys, "trace", str(first), "--json"))

    assert printed["accepted"]
    assert [each["file"] for each in printed["incarnations"]] == [first.name]


def test_a_trace_that_breaks_the_rules_is_shown_and_exits_with_code_1(capsys: Captured, folder: Path) -> None:
    [first, *_] = sorted(folder.iterdir())
    lines = first.read_text().splitlines(keepends=True)
    number = next(number for number, line in enumerate(lines) if '"kind":"CommitEpoch"' in line)
    lines[number] = lines[number].replace('"base":0', '"base":7')
    first.write_text("".join(lines))

    printed = out(capsys, "trace", str(first), code=1)
    assert f"{first.name}, line {number + 1}: event" in printed


@pytest.mark.parametrize("text", [None, "", "{}\n"])
def test_an_invalid_trace_is_the_users_mistake(capsys: Captured, tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "file.jsonl"
    if text is not None:
        path.write_text(text)
    assert exit_code(["trace", str(path)]) == 2
    assert "CKPT_TRACE_INVALID" in capsys.readouterr().err
