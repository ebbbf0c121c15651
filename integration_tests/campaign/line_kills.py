"""Two programs, killed repeatedly: joined by an edge, with the index protocol, or by a topic of Kafka.

After every ten kills both drain. The reader's state must be that of a run without failure; every line of programs that an edge
joins is judged offline.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from integration_tests.broker import Broker
from integration_tests.campaign.trial import Results
from integration_tests.edges.judged_lines import NoCut, judged_lines
from integration_tests.survival.kills import IN_DRIVER, Kill, at_point, at_random
from integration_tests.survival.ledger import create_topic
from integration_tests.survival.process import Lives
from spark_ckpt.store.existing import existing_store

PROGRAM = "integration_tests.edges.two_programs"
ROLES = ("orders", "totals")
KEYS, ROWS_A_FILE, FILES_A_LIFE, OF_A_PAIR = 7, 25, 3, 10
POINTS = (*IN_DRIVER, "STAGED")
OF_A_TOPIC = {"orders": (*POINTS, "MID_SEND", "PRE_COMMIT", "PUBLISH_COMMITTED"), "totals": POINTS}
"""Failpoints of programs that Kafka joins, by program."""

State = dict[str, tuple[int, int, int]]
"""By key: the newest number, the sum of the values, the count of numbers out of sequence."""


@dataclass
class Inbox:
    """The input of the first program."""

    folder: Path
    files: int = 0

    def write(self) -> None:
        """Write one more file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        numbers = range(self.files * ROWS_A_FILE, (self.files + 1) * ROWS_A_FILE)
        hidden = self.folder / f".{self.files:05}.json"
        hidden.write_text("".join(json.dumps({"k": f"k{number % KEYS}", "v": number}) + "\n" for number in numbers))
        hidden.rename(self.folder / f"{self.files:05}.json")
        self.files += 1


def line_kills(folder: Path, trials: int, seed: int, results: Results) -> None:
    """Kill either program `trials` times; after every ten kills both drain, and every line that both have is judged."""
    draw = random.Random(seed)
    for begin in range(0, trials, OF_A_PAIR):
        root = folder / f"pair-{begin}"
        points = dict.fromkeys(ROLES, POINTS)
        _one_pair(root, ["--protocol", "index"], points, min(OF_A_PAIR, trials - begin), draw, results)
        _judge(root, results)


def topic_kills(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """Kill either program `trials` times; a topic joins them."""
    draw = random.Random(seed)
    for begin in range(0, trials, OF_A_PAIR):
        arguments = ["--servers", broker.servers, "--topic", create_topic(broker.servers, "numbered", 2)]
        _one_pair(folder / f"pair-{begin}", arguments, OF_A_TOPIC, min(OF_A_PAIR, trials - begin), draw, results)


def _one_pair(
    root: Path,
    arguments: list[str],
    points: Mapping[str, Sequence[str]],
    kills: int,
    draw: random.Random,
    results: Results,
) -> None:
    inbox = Inbox(root / "in")
    lives = Lives(root / "lives", ["--root", str(root), *arguments], program=PROGRAM)
    inbox.write()
    lives.drain("orders")
    try:
        for number in range(kills):
            for _ in range(FILES_A_LIFE):
                inbox.write()
            role = draw.choice(ROLES)
            kill = _drawn(draw, points[role], root / f"death-{number:03}")
            if role == "totals":
                lives.drain("orders")  # something to read
            name = kill.name if kill.name in points[role] else "random moment"
            results.add(f"{role}, {name}", why=_die(lives, role, kill))
        for role in ROLES:
            lives.drain(role)
    finally:
        lives.end()
    compare_state(root, inbox.files, "rows compared", results)


def compare_state(root: Path, files: int, kind: str, results: Results) -> None:
    """Compare the reader's state with that of a run without failure."""
    found, expected = state_of_reader(root), expected_state(files)
    why = "" if found == expected else f"the state is {found}, expected {expected}"[:500]
    results.add(kind, {"rows": files * ROWS_A_FILE, "wrong": int(bool(why))}, why)


def state_of_reader(root: Path) -> State:
    """State of the newest epoch."""
    store = existing_store(str(root / "totals"))
    rows = store.state("check").read(store.log.state().latest).to_pylist()
    return {row["k"]: (row["last"], row["total"], row["wrong"]) for row in rows}


def expected_state(files: int) -> State:
    """State of a run without failure that has read all rows of these files."""
    values = range(files * ROWS_A_FILE)
    counts = Counter(f"k{value % KEYS}" for value in values)
    return {key: (count, sum(v for v in values if f"k{v % KEYS}" == key), 0) for key, count in counts.items()}


def _drawn(draw: random.Random, points: Sequence[str], folder: Path) -> Kill:
    folder.mkdir()
    return at_point(draw.choice(points), folder) if draw.random() < 0.5 else at_random(draw)


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
