"""Result lines, read strictly: a line that is not understood stops the report instead of missing from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

Measure = Literal["throughput", "latency", "recovery", "epoch", "interval", "machine", "table"]


class Line(BaseModel):
    """One run of one system. `values` with `failed`, the reason, is a run that brought no numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measure: Measure
    job: str = ""
    workload: str = ""
    system: str = ""
    interval_ms: int = 0
    repeat: int = 0
    values: dict[str, Any]

    @property
    def failed(self) -> str | None:
        """Why it brought no numbers, if it did not."""
        reason = self.values.get("failed") or self.values.get("error")
        return None if not reason else str(reason).strip() if reason is not True else "no reason given"

    def number(self, name: str) -> float | None:
        """A value that may be absent."""
        value = self.values.get(name)
        return None if value is None else float(value)


class Recorded(Line):
    """A line, and which of the file's sessions it belongs to: repeats of different ones were not run in turn."""

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
