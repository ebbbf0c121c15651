"""Campaigns: results add up over days, since each campaign continues with seeds that the earlier ones have not tried.

`campaigns.jsonl` has a line for each protocol and round: date, commit, first seed, counts, and every condemned schedule with all
that is necessary to run it again. A commit that changes a machine does not remove earlier results; the page lists the commit of
each result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

from integration_tests.proof.tried import Condemned, tried

CAMPAIGNS = Path(__file__).with_name("campaigns.jsonl")


@dataclass(frozen=True)
class When:
    """Date and commit of a line."""

    date: str
    commit: str


@dataclass(frozen=True)
class Line:
    """One protocol in one round; `seconds` are processor time, `first` is the first seed."""

    date: str
    commit: str
    protocol: str
    first: int
    schedules: int
    steps: int
    simulated_ms: float
    seconds: float
    replayed: int
    condemned: Sequence[Condemned] = ()

    @property
    def hours(self) -> float:
        """Simulated time in hours."""
        return self.simulated_ms / 3_600_000


@dataclass(frozen=True)
class Sum:
    """Sum of several lines."""

    schedules: int
    hours: float
    replayed: int
    condemned: int

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Sum:
        """Sum of all lines."""
        every = list(lines)
        return cls(
            sum(line.schedules for line in every),
            sum(line.hours for line in every),
            sum(line.replayed for line in every),
            sum(len(line.condemned) for line in every),
        )


def read(campaigns: Path = CAMPAIGNS) -> list[Line]:
    """Every line, oldest first."""
    texts = campaigns.read_text().splitlines() if campaigns.exists() else []
    return [_line(json.loads(text)) for text in texts]


def _line(fields: Mapping[str, object]) -> Line:
    condemned = fields["condemned"]
    assert isinstance(condemned, list)
    return Line(**{**fields, "condemned": [Condemned(**each) for each in condemned]})  # type: ignore[arg-type]


def by_campaign(lines: Iterable[Line]) -> Iterator[tuple[When, Sum]]:
    """Sums of each commit's campaign, in the order they were run."""
    for when, group in groupby(lines, lambda line: When(line.date, line.commit)):
        yield when, Sum.of(group)


def by_protocol(lines: Iterable[Line]) -> dict[str, Sum]:
    """Sums over all campaigns."""
    every = list(lines)
    names = dict.fromkeys(line.protocol for line in every)
    return {name: Sum.of(line for line in every if line.protocol == name) for name in names}


def next_seeds(lines: Iterable[Line], measured: int) -> dict[str, int]:
    """The first untried seed of each protocol; `measured`: number of seeds that the page's own measurement may have used."""
    found: dict[str, int] = {}
    for line in lines:
        found[line.protocol] = max(found.get(line.protocol, measured), line.first + line.schedules)
    return found


def campaign(
    names: Sequence[str],
    seconds: float,
    when: When,
    processes: int,
    campaigns: Path = CAMPAIGNS,
    measured: int = 100_000,
) -> Iterator[Line]:
    """One round: run every protocol for `seconds`, and record each when it ends."""
    begin = next_seeds(read(campaigns), measured)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        work = partial(_tried, when, seconds)
        for done in as_completed([pool.submit(work, name, begin.get(name, measured)) for name in names]):
            line = done.result()
            with campaigns.open("a") as file:
                file.write(json.dumps(asdict(line)) + "\n")
            yield line


def _tried(when: When, seconds: float, name: str, first: int) -> Line:
    found = tried(name, seconds, first)
    return Line(
        when.date,
        when.commit,
        name,
        first,
        found.schedules,
        found.steps,
        found.simulated_ms,
        found.seconds,
        found.replayed,
        found.failures,
    )
