"""Results of campaigns: one JSON line per trial, appended, so that a campaign can continue later.

`merge` adds up trials that kept their promise, so that the file has a line for each kind and commit.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from integration_tests.survival.process import ROOT

RESULTS = Path(__file__).with_name("results.jsonl")


@dataclass(frozen=True)
class Trial:
    """One trial of the product, and its result. `figures` are counts or measures, by name.

    `times`: number of trials in this line, whose figures are sums. Its seed is that of the first one.
    """

    campaign: str
    kind: str
    seed: int
    figures: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    commit: str = ""
    day: str = ""
    times: int = 1

    @property
    def adds_up(self) -> bool:
        """True if it can be added to others of its kind: it kept its promise, and its figures are counts."""
        return not self.why and self.campaign != "soak" and not any(name.endswith(" s") for name in self.figures)


class Results:
    """The file of trials, and the campaign's progress on the terminal."""

    def __init__(self, path: Path, campaign: str, seed: int) -> None:
        self._path = path
        self._campaign = campaign
        self._seed = seed
        self._commit = current_commit()
        self.count = 0

    def add(
        self, kind: str, figures: Mapping[str, float] | None = None, why: str = "", seed: int | None = None
    ) -> None:
        """Record a trial. `why` is empty unless a promise was broken. `seed`: the trial's own, if it has one."""
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


def merge(path: Path) -> None:
    """Replace the trials of a file that add up by their sums."""
    merged: dict[object, Trial] = {}
    for number, trial in enumerate(read(path)):
        key = (trial.campaign, trial.kind, trial.commit, trial.day, *sorted(trial.figures)) if trial.adds_up else number
        known = merged.get(key)
        figures = trial.figures if known is None else {n: known.figures[n] + trial.figures[n] for n in trial.figures}
        times = trial.times if known is None else known.times + trial.times
        merged[key] = replace(known or trial, figures=figures, times=times)
    path.write_text("".join(json.dumps(asdict(trial)) + "\n" for trial in merged.values()))


def current_commit() -> str:
    """The commit under test."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
