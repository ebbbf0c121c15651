"""Campaigns of the simulator add up over days, try new seeds, and keep all that a condemned schedule needs to run again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from checkpoint_lab.violations import Violation
from integration_tests.proof.ledger import Line, Sum, When, by_campaign, by_protocol, campaign, next_seeds, read
from integration_tests.proof.page import campaigns_of
from integration_tests.proof.tried import Condemned, tried, world_of

NOW = When("2026-01-02", "abc1234")
HOUR_MS = 3_600_000.0


def line(protocol: str, first: int = 0, commit: str = "abc1234", condemned: tuple[Condemned, ...] = ()) -> Line:
    return Line("2026-01-02", commit, protocol, first, 10, 100, HOUR_MS, 1.0, 1, condemned)


def test_lines_add_up_by_commit_and_by_protocol() -> None:
    lines = [line("markers"), line("epochs"), line("markers", 10, "def5678")]

    assert [(when.commit, found) for when, found in by_campaign(lines)] == [
        ("abc1234", Sum(20, 2.0, 2, 0)),
        ("def5678", Sum(10, 1.0, 1, 0)),
    ]
    assert by_protocol(lines) == {"markers": Sum(20, 2.0, 2, 0), "epochs": Sum(10, 1.0, 1, 0)}


def test_a_campaign_continues_after_the_seeds_of_all_before_it() -> None:
    lines = [line("markers", 5_000), line("markers", 100), line("epochs", 10)]

    assert next_seeds(lines, measured=50) == {"markers": 5_010, "epochs": 50}


def test_a_second_campaign_tries_other_seeds_than_the_first(tmp_path: Path) -> None:
    kept = tmp_path / "campaigns.jsonl"
    for _ in range(2):
        assert [line.condemned for line in campaign(["coordinated"], 0.05, NOW, 1, kept, measured=0)] == [[]]
    first, second = read(kept)

    assert first.first == 0
    assert second.first == first.schedules > 0


def test_a_condemned_schedule_is_kept_and_runs_again(tmp_path: Path) -> None:
    """An unsound protocol is condemned soon."""
    found = tried("wall-clock", 0.5).failures[0]
    kept = tmp_path / "campaigns.jsonl"
    kept.write_text(json.dumps(asdict(line("wall-clock", condemned=(found,)))) + "\n")
    again = read(kept)[0].condemned[0]

    with pytest.raises(Violation, match=found.error[:2]):
        world = world_of("wall-clock", again.world).follow([tuple(choice) for choice in again.trace])
        world.judge()
        world.judge_rounds()


def test_the_page_lists_condemned_schedules() -> None:
    found = (
        Condemned(3, 3, "O2: lost", ()),
        Condemned(4, 4, "O1: twice", (), "mended"),
        Condemned(5, 5, "O1: 3", (), "mended"),
    )
    whole = campaigns_of([line("markers"), line("epochs", condemned=found)])

    assert "| 2026-01-02 | `abc1234` | 20 | 2 | 2 | 3 |" in whole
    assert "- O2: lost (open): epochs 3\n" in whole
    assert "- mended: epochs 4, epochs 5\n" in whole
