"""Event time of a job: a watermark per operator input; the least one is in force, as in Spark. No watermark
decreases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_ckpt.connector import Json
from spark_ckpt.coordination.reports import Report
from spark_ckpt.epochs.records import Manifest

Input = tuple[str, str]
"""Name of an operator and of one of its inputs."""

SCOPE = "event times"
"""Scope of the report about the event times of a batch's rows."""


def event_times(newest_ms: Mapping[Input, int]) -> Report:
    """Return the report of the greatest event time of each input in a batch, in milliseconds."""
    return Report("input", 0, 0, SCOPE, {_key(each): time_ms for each, time_ms in newest_ms.items()})


class Watermarks:
    """Watermarks of one incarnation.

    `delays_ms`: allowed lateness in milliseconds, by input. `base`: the epoch that the incarnation continues from. An
    input without rows so far holds the common watermark back, as in Spark.
    """

    def __init__(self, delays_ms: Mapping[Input, int], base: Manifest) -> None:
        self._delays_ms = dict(delays_ms)
        self._base_ms = base.watermark_ms
        self.now_ms = base.watermark_ms
        """Watermark after the rows so far; it expires state in the next batch."""
        self.late_ms = base.watermark_ms if base.late_watermark_ms is None else base.late_watermark_ms
        """Watermark of the last batch; rows of the next batch are late by it."""
        known = {
            (name, each): ms for name, snapshot in base.operators.items() for each, ms in snapshot.watermarks.items()
        }
        self._inputs_ms = {each: known[each] for each in self._delays_ms if each in known}

    @property
    def newest_ms(self) -> dict[Input, int]:
        """Event times that correspond to the inputs' watermarks; a query's clocks start with them."""
        return {each: ms + self._delays_ms[each] for each, ms in self._inputs_ms.items()}

    @property
    def by_operator(self) -> dict[str, dict[str, int]]:
        """Watermarks in milliseconds, by operator and input."""
        found: dict[str, dict[str, int]] = {}
        for (operator, name), ms in self._inputs_ms.items():
            found.setdefault(operator, {})[name] = ms
        return found

    def advance(self, sparks_ms: int, reports: Iterable[Report]) -> None:
        """Advance the watermarks after a batch. `sparks_ms`: the watermark that Spark recorded for it."""
        # A fresh Spark checkpoint starts without a watermark; the restored one must not decrease.
        self.late_ms = max(self._base_ms, sparks_ms)
        self.now_ms = max(self.now_ms, sparks_ms)
        for report in reports:
            if report.scope == SCOPE:
                self._see(report.body)
        if self._delays_ms:
            # Spark computes the same minimum, but only when it plans the next batch.
            least = min(self._inputs_ms.get(each, 0) for each in self._delays_ms)
            self.now_ms = max(self.now_ms, least)

    def _see(self, body: Mapping[str, Json]) -> None:
        for each, delay_ms in self._delays_ms.items():
            time_ms = body.get(_key(each))
            if isinstance(time_ms, int):
                self._inputs_ms[each] = max(self._inputs_ms.get(each, time_ms - delay_ms), time_ms - delay_ms)


def _key(of: Input) -> str:
    """Return the input's key in a report; operator names contain no slash."""
    return "/".join(of)
