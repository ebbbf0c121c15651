"""What a campaign writes down: one JSON line per trial, appended, so that a campaign can go on later."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from integration_tests.survival.process import ROOT

RESULTS = Path(__file__).with_name("results.jsonl")


@dataclass(frozen=True)
class Trial:
    """One thing that was done to the product, and what it led to. `figures` are counts or measures, by name."""

    campaign: str
    kind: str
    seed: int
    figures: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    commit: str = ""
    day: str = ""


class Results:
    """The file of trials, and the campaign's own account on the terminal."""

    def __init__(self, path: Path, campaign: str, seed: int) -> None:
        self._path = path
        self._campaign = campaign
        self._seed = seed
        self._commit = current_commit()
        self.count = 0

    def add(
        self, kind: str, figures: Mapping[str, float] | None = None, why: str = "", seed: int | None = None
    ) -> None:
        """Write a trial down. `why` is empty unless a promise was broken. `seed`: the trial's own, if it has one."""
        day = time.strftime("%Y-%m-%d", time.gmtime())
        drawn_from = self._seed if seed is None else seed
        trial = Trial(self._campaign, kind, drawn_from, figures or {}, why, self._commit, day)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(trial)) + "\n")
        self.count += 1
        print(
            f"{time.strftime('%H:%M:%S')} {self._campaign} {self.count}: {kind} {dict(trial.figures)} {why}", flush=True
        )


def read(path: Path) -> Iterator[Trial]:
    """Every trial of a file."""
    for line in path.read_text().splitlines():
        yield Trial(**json.loads(line))


def current_commit() -> str:
    """The commit that is tried."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
