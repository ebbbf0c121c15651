"""Read result lines strictly: a line that cannot be parsed stops the report, so that none is silently missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

FAULTS = ("duplicates", "missing", "wrong")
Measure = Literal[
    "throughput", "drain", "latency", "parts", "recovery", "epoch", "interval", "start", "per_key", "machine", "table"
]
REQUIRED: dict[str, tuple[str, ...]] = {
    "throughput": ("records_per_s", *FAULTS),
    "drain": ("events", "drained_s", "records_per_s", *FAULTS),
    "latency": ("rate", "p50_ms", "p99_ms", *FAULTS),
    "parts": ("rate", "mean_ms", "unexplained_mean_ms", *FAULTS),
    "recovery": ("first_record_s", *FAULTS),
    "epoch": ("keys", "changed", "epoch_ms", "bytes"),
    "interval": ("records_per_s", "lost"),
    "start": ("empty_s", "job_s"),
    "per_key": ("plain_ms", "unchanged_ms", "tuples_ms", "vectorised_ms", "built_in_ms"),
    "machine": ("cores", "memory_gib", "system", "versions"),
    "table": ("markdown",),
}
"""Values that a line of a measure must have, unless its run failed."""
NOT_NUMBERS = ("machine", "table")
SUM_OFF_MS = 0.5
"""Allowed difference between the sum of the parts and the whole time of a record: other lines are rejected."""


class Line(BaseModel):
    """One run of one system. A run without numbers has `failed`, the reason, in `values`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measure: Measure
    job: str = ""
    workload: str = ""
    system: str = ""
    interval_ms: int = 0
    repeat: int = 0
    values: dict[str, Any]

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.failed is None:
            missing = [name for name in REQUIRED[self.measure] if name not in self.values]
            odd = [
                name for name, value in self.values.items() if self.measure not in NOT_NUMBERS and not _is_number(value)
            ]
            if missing or odd:
                raise ValueError(f"missing: {missing}, not a number: {odd}")
            if (
                self.measure == "parts"
                and (gap_ms := abs(sum(means_of(self).values()) - self.values["mean_ms"])) > SUM_OFF_MS
            ):
                raise ValueError(f"the parts' means miss the whole by {gap_ms:.1f} ms")
        return self

    @property
    def failed(self) -> str | None:
        """Reason why it has no numbers, or None."""
        return (str(self.values["failed"]).strip() or "no reason given") if "failed" in self.values else None

    def number(self, name: str) -> float | None:
        """A value that may be absent."""
        value = self.values.get(name)
        return None if value is None else float(value)


PART_MEAN = "_mean_ms"


def means_of(line: Line) -> dict[str, float]:
    """Mean milliseconds of a record by part, in the parts' order; their sum is the line's `mean_ms`."""
    return {
        name.removesuffix(PART_MEAN): float(value) for name, value in line.values.items() if name.endswith(PART_MEAN)
    }


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class Recorded(Line):
    """A line with the number of its session: repeats of different sessions did not run in turn."""

    session: int = 0


def by_session(lines: Iterable[Line]) -> Iterator[Recorded]:
    """A session begins with the machine's line."""
    session = 0
    for line in lines:
        session += line.measure == "machine"
        yield Recorded(**line.model_dump(), session=session)


def read(path: Path) -> list[Line]:
    """All lines of a file, in order."""
    return [_parsed(path, number, text) for number, text in enumerate(path.read_text().splitlines(), 1) if text.strip()]


def _parsed(path: Path, number: int, text: str) -> Line:
    try:
        return Line.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(f"{path}, line {number} is no result line: {error}") from error
