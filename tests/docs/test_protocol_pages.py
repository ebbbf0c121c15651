"""The pages about protocols are complete, and their commands and pictures can be repeated."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import checkpoint_lab as sim
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.snapshots import wall_clock
from spark_ckpt.cli.app import exit_code

PAGES = Path(__file__).parents[2] / "docs" / "protocols"
DIAGRAMS: dict[str, list[str]] = json.loads((PAGES / "diagrams.json").read_text())
WITH_PAGE = set(sim.NAMES) - {sim.OVERLAPPING, sim.FORMAT}
"""The page of `outbox` is also for these two."""
CONDEMNED = "wall-clock"
"""The counter-example: its run ends with the exit code of a violation."""


def shell_commands(page: str) -> list[str]:
    """Lines of a page's `sh` blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def pages() -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted(PAGES.glob("*.md"))}


def differing(folder: Path) -> list[str]:
    """Pictures in the folder that differ from their command's current output."""
    return [name for name in DIAGRAMS if (PAGES / f"{name}.svg").read_bytes() != (folder / f"{name}.svg").read_bytes()]


def code_of(arguments: list[str]) -> int:
    return int(CONDEMNED in arguments)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_protocol_has_a_page_and_a_picture() -> None:
    assert set(DIAGRAMS) == WITH_PAGE == set(pages()) - {"README"}
    assert {path.stem for path in PAGES.glob("*.svg")} == WITH_PAGE


def test_every_page_shows_its_picture_and_the_command_that_draws_it() -> None:
    for name, arguments in DIAGRAMS.items():
        assert f"({name}.svg)" in pages()[name]
        assert shell_commands(pages()[name])[0] == "spark-ckpt " + shlex.join(arguments)


def test_every_page_says_if_a_job_uses_the_protocol() -> None:
    """The protocols of messages are simulator only; `spark-ckpt compare` has the same ones."""
    only = {name for name, page in pages().items() if "\nSimulator only: no job uses it.\n" in page}
    assert only == set(MENU)
    assert [name for name in WITH_PAGE - only if "\nUsed by: " not in pages()[name]] == []


def test_every_page_names_the_oracles_of_the_sinks() -> None:
    for name, protocol in MENU.items():
        promise = protocol.output.promise
        assert f"**Output.** {promise[0].upper()}{promise[1:]}." in pages()[name]


def test_every_picture_equals_its_commands_output(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To redraw one, run the command of its page in docs/protocols."""
    for arguments in DIAGRAMS.values():
        assert exit_code(arguments) == code_of(arguments)

    assert differing(here) == []

    (here / "epochs.svg").write_text((here / "markers.svg").read_text())
    assert differing(here) == ["epochs"]


def test_every_picture_is_short_and_shows_a_crash() -> None:
    for name in DIAGRAMS:
        drawn = (PAGES / f"{name}.svg").read_text()
        assert len(drawn) < 60_000
        assert 'class="crash" d="M' in drawn.split("<g transform")[0], name


@pytest.mark.parametrize("name", sorted(pages()))
def test_every_command_on_a_page_runs(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = shell_commands(pages()[name])

    assert commands
    for command in commands:
        # On Spark: integration_tests/protocols.
        few = re.sub(r"--schedules \d+", "--schedules 5", command)  # many: tests/simulator and tests/protocol
        program, *arguments = shlex.split(few.partition(" --on-spark")[0])
        assert program == "spark-ckpt"
        assert exit_code(arguments) == code_of(arguments), command
        output = capsys.readouterr().out
        if arguments == ["compare"]:
            assert output.strip() in pages()[name], "the table of the page is an old one"


def test_the_index_links_every_page() -> None:
    assert set(re.findall(r"\]\(([a-z-]+)\.md\)", pages()["README"])) == WITH_PAGE


def test_the_drift_table_equals_a_measurement() -> None:
    """Clock skew against shares of complete snapshots with orphans and with losses."""
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+%) \| (\d+%) \|$", pages()[CONDEMNED], re.MULTILINE)

    assert len(rows) == 6
    assert [measured(skew) for skew, *_ in rows] == rows


def measured(skew: str) -> tuple[str, str, str, str]:
    audits = [
        audit
        for seed in range(25)
        for audit in sim.measure(wall_clock.PROTOCOL, sim.GRAPHS["cycle"], seed, skew_ms=float(skew)).audits
    ]
    orphans = sum(bool(audit.orphans) for audit in audits) / len(audits)
    lost = sum(bool(audit.lost) for audit in audits) / len(audits)
    return skew, str(len(audits)), f"{orphans:.0%}", f"{lost:.0%}"
