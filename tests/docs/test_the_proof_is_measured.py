"""The command on the proof page measures and writes the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from integration_tests.proof import __main__ as command
from integration_tests.proof.caught import Caught
from integration_tests.proof.page import RESULTS, write_page


def test_one_command_measures_and_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, page = tmp_path / "results.json", tmp_path / "proof.md"
    monkeypatch.setattr(command, "RESULTS", results)
    monkeypatch.setattr(command, "write_page", lambda: write_page(results, page))
    monkeypatch.setattr(command, "sound_names", lambda: ["markers", "lease", "spark"])
    monkeypatch.setattr(
        command, "caught", lambda: [Caught("here", "a bug", 3, 0.5), Caught("there", "another one", None, 1.5)]
    )

    answer = CliRunner().invoke(command.app, ["all", "--seconds", "0.3"], catch_exceptions=False)

    assert answer.exit_code == 0
    text = page.read_text()
    assert "| a process dies |" in text
    assert "| there | another one | not within 400 |" in text
    assert "2 bugs, 1 caught" in text
    assert "took 2 seconds" in text


def test_planted_bugs_are_measured_again_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, page = tmp_path / "results.json", tmp_path / "proof.md"
    results.write_text(RESULTS.read_text())
    monkeypatch.setattr(command, "RESULTS", results)
    monkeypatch.setattr(command, "write_page", lambda: write_page(results, page))
    monkeypatch.setattr(command, "caught", lambda: [Caught("here", "a bug", 7)])

    answer = CliRunner().invoke(command.app, ["bugs"], catch_exceptions=False)

    assert answer.exit_code == 0
    assert json.loads(results.read_text())["tried"] == json.loads(RESULTS.read_text())["tried"]
    assert "| here | a bug | 7 |" in page.read_text()
    assert "1 bugs, 1 caught" in page.read_text()
