"""Contents of a file of result lines, by measurement and place, with the systems' names and guarantees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

from benchmarks.report.lines import Line, Measure, Recorded, by_session
from benchmarks.report.runs import Runs, best, grouped

if TYPE_CHECKING:
    from benchmarks.systems import System

OURS = "spark_ckpt"
BUILT_IN, VECTORISED = f"{OURS}-builtin", f"{OURS}-vectorised"


class Place(NamedTuple):
    """A job on a workload."""

    job: str
    workload: str

    def __str__(self) -> str:
        return ", ".join(part for part in self if part)


class Entry(NamedTuple):
    """A system, and its interval between commits."""

    system: str
    interval_ms: int


@dataclass(frozen=True)
class Contents:
    """All lines of a file."""

    lines: tuple[Recorded, ...]
    systems: Mapping[str, System]

    @classmethod
    def over(cls, lines: Iterable[Line], systems: Mapping[str, System]) -> Self:
        """Contents of a file's lines in order."""
        return cls(tuple(by_session(lines)), systems)

    def of(self, measure: Measure) -> list[Recorded]:
        """Lines of one measure."""
        return [line for line in self.lines if line.measure == measure]

    def places(self, measure: Measure) -> dict[Place, dict[Entry, Runs]]:
        """Repeats of a measure, by place, then by entry."""
        places = grouped(self.of(measure), lambda line: Place(line.job, line.workload))
        return {
            place: grouped(runs.lines, lambda each: Entry(each.system, each.interval_ms))
            for place, runs in places.items()
        }

    @cached_property
    def failed(self) -> list[Recorded]:
        """All runs without numbers."""
        return [line for line in self.lines if line.failed is not None]

    @cached_property
    def rates(self) -> set[float]:
        """Rates in records per second at which latency was measured."""
        return {rate for line in self.of("latency") if (rate := line.number("rate")) is not None}

    def rate(self, line: Line) -> float | None:
        """Rate of a line. A failed run has none of its own: it gets that of the others, if there is only one."""
        known = line.number("rate")
        return next(iter(self.rates)) if known is None and len(self.rates) == 1 else known

    def label(self, system: str) -> str:
        """Name of a system for readers; an unknown one is shown unchanged."""
        return self.systems[system].label if system in self.systems else system

    def guarantee(self, system: str) -> str:
        """Delivery guarantee of its output."""
        return self.systems[system].guarantee if system in self.systems else "-"

    def every_input(self, system: str) -> bool:
        """True if it answers each input."""
        return system not in self.systems or self.systems[system].every_input

    def reference(self, entries: Mapping[Entry, Runs], interval_ms: int) -> tuple[str, Runs] | None:
        """Our fastest exactly-once variant at an interval: the reference for the others."""
        ours = [
            (entry.system, runs)
            for entry, runs in entries.items()
            if is_ours(entry.system)
            and entry.interval_ms == interval_ms
            and self.guarantee(entry.system) != "at-least-once"
        ]
        return best(ours, "records_per_s")


def is_ours(system: str) -> bool:
    """True for a variant of spark_ckpt."""
    return system.split("-")[0] == OURS
