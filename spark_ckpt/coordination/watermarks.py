"""Event time of a job: a watermark per operator input, and the one in force, the least of them, as in Spark. None goes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_ckpt.connector import Json
from spark_ckpt.coordination.reports import Report
from spark_ckpt.store.records import Manifest

Input = tuple[str, str]
"""An operator and one of its inputs."""

SCOPE = "event times"
"""The scope of the report of what a batch's rows had for event times."""


def event_times(newest_ms: Mapping[Input, int]) -> Report:
    """The report of the greatest event time that each input has seen in a batch."""
    return Report("input", 0, 0, SCOPE, {_key(each): time_ms for each, time_ms in newest_ms.items()})


class Watermarks:
    """`delays_ms`: how late every input's rows may be. An input that has had no row yet holds the others back, as in Spark."""

    def __init__(self, delays_ms: Mapping[Input, int], base: Manifest) -> None:
        self._delays_ms = dict(delays_ms)
        self._base_ms = base.watermark_ms
        self.now_ms = base.watermark_ms
        """Of the rows so far: what state goes by in the next batch."""
        self.late_ms = base.watermark_ms if base.late_watermark_ms is None else base.late_watermark_ms
        """What rows of the next batch are late by: the last batch's watermark."""
        known = {
            (name, each): ms for name, snapshot in base.operators.items() for each, ms in snapshot.watermarks.items()
        }
        self._inputs_ms = {each: known[each] for each in self._delays_ms if each in known}

    @property
    def newest_ms(self) -> dict[Input, int]:
        """The event times that the inputs' watermarks stand for: what a query's clocks begin with."""
        return {each: ms + self._delays_ms[each] for each, ms in self._inputs_ms.items()}

    @property
    def by_operator(self) -> dict[str, dict[str, int]]:
        """Every operator's, by input."""
        found: dict[str, dict[str, int]] = {}
        for (operator, name), ms in self._inputs_ms.items():
            found.setdefault(operator, {})[name] = ms
        return found

    def advance(self, sparks_ms: int, reports: Iterable[Report]) -> None:
        """A batch has run. `sparks_ms`: the watermark that Spark wrote down for it."""
        self.late_ms = max(self._base_ms, sparks_ms)
        self.now_ms = max(self.now_ms, sparks_ms)
        for report in reports:
            if report.scope == SCOPE:
                self._see(report.body)
        if self._delays_ms:
            least = min(self._inputs_ms.get(each, 0) for each in self._delays_ms)
            self.now_ms = max(self.now_ms, least)

    def _see(self, body: Mapping[str, Json]) -> None:
        for each, delay_ms in self._delays_ms.items():
            time_ms = body.get(_key(each))
            if isinstance(time_ms, int):
                self._inputs_ms[each] = max(self._inputs_ms.get(each, time_ms - delay_ms), time_ms - delay_ms)


def _key(of: Input) -> str:
    """In a report; no operator has a slash in its name."""
    return "/".join(of)
