"""Two programs joined by an edge, with the index protocol, killed again and again; every named line is judged offline."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from integration_tests.campaign.trial import Results
from integration_tests.edges.judged_lines import NoCut, judged_lines
from integration_tests.survival.kills import IN_DRIVER, Kill, at_point, at_random
from integration_tests.survival.process import Lives

PROGRAM = "integration_tests.edges.two_programs"
ROLES = ("orders", "totals")
KEYS, ROWS_A_FILE, FILES_A_LIFE, OF_A_PAIR = 7, 25, 3, 10
POINTS = (*IN_DRIVER, "STAGED")


@dataclass
class Inbox:
    """The input of the first program."""

    folder: Path
    files: int = 0

    def write(self) -> None:
        """One more file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        numbers = range(self.files * ROWS_A_FILE, (self.files + 1) * ROWS_A_FILE)
        hidden = self.folder / f".{self.files:05}.json"
        hidden.write_text("".join(json.dumps({"k": f"k{number % KEYS}", "v": number}) + "\n" for number in numbers))
        hidden.rename(self.folder / f"{self.files:05}.json")
        self.files += 1


def line_kills(folder: Path, trials: int, seed: int, results: Results) -> None:
    """`trials` deaths of either program; after each ten both drain, and every line that both have is judged."""
    draw = random.Random(seed)
    for begin in range(0, trials, OF_A_PAIR):
        _one_pair(folder / f"pair-{begin}", min(OF_A_PAIR, trials - begin), draw, results)


def _one_pair(root: Path, kills: int, draw: random.Random, results: Results) -> None:
    inbox = Inbox(root / "in")
    lives = Lives(root / "lives", ["--root", str(root), "--protocol", "index"], program=PROGRAM)
    inbox.write()
    lives.drain("orders")
    try:
        for number in range(kills):
            for _ in range(FILES_A_LIFE):
                inbox.write()
            role, kill = draw.choice(ROLES), _drawn(draw, root / f"death-{number:03}")
            if role == "totals":
                lives.drain("orders")  # something to read
            name = kill.name if kill.name in POINTS else "random moment"
            results.add(f"{role}, {name}", why=_die(lives, role, kill))
        for role in ROLES:
            lives.drain(role)
    finally:
        lives.end()
    _judge(root, results)


def _drawn(draw: random.Random, folder: Path) -> Kill:
    folder.mkdir()
    return at_point(draw.choice(POINTS), folder) if draw.random() < 0.5 else at_random(draw)


def _die(lives: Lives, role: str, kill: Kill) -> str:
    try:
        with lives.start(role, environment=kill.environment) as driver:
            kill.strike(driver)
    except AssertionError as error:
        return str(error)
    return ""


def _judge(root: Path, results: Results) -> None:
    try:
        found = judged_lines(root / "orders", root / "totals")
    except NoCut as error:
        results.add("lines judged", {"wrong": 1}, str(error)[:500])
        return
    results.add("lines judged", {"lines": found, "wrong": 0})
