"""Python functions with state per key, for the drawn programs. Their rows do not depend on the order of a key's rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

ROWS = "k string, what string, n long"
IDLE_MS = 10_000


def row(key: Any, what: str, n: int) -> pd.DataFrame:
    """One row of `ROWS`."""
    return pd.DataFrame({"k": [key[0]], "what": [what], "n": [n]})


def sum_up(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Running total of a key."""
    total = (state.get[0] if state.exists else 0) + sum(int(frame["v"].sum()) for frame in frames)
    state.update((total,))
    yield row(key, "total", total)


def sum_until_idle(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Total of a key when event time has passed its newest row by `IDLE_MS`; then the key starts again."""
    if state.hasTimedOut:
        total = state.get[0]
        state.remove()
        yield row(key, "idle", total)
        return
    total, newest_ms = state.get if state.exists else (0, 0)
    for frame in frames:
        total += int(frame["v"].sum())
        newest_ms = max(newest_ms, newest_of(frame))
    state.update((total, newest_ms))
    state.setTimeoutTimestamp(max(newest_ms + IDLE_MS, state.getCurrentWatermarkMs() + 1))


def newest_of(frame: pd.DataFrame) -> int:
    """Newest event time of a frame in milliseconds."""
    return int(frame["at"].max().timestamp() * 1000)


class InAValue(StatefulProcessor):
    """Running total, in a value state."""

    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        total = self._total.get()[0] if self._total.exists() else 0
        total += sum(int(frame["v"].sum()) for frame in rows)
        self._total.update((total,))
        yield row(key, "value", total)

    def close(self) -> None: ...


class InAList(StatefulProcessor):
    """All values so far, in a list state; emits their count and their sum."""

    def init(self, handle: Any) -> None:
        self._values = handle.getListState("values", "v long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for value in frame["v"]:
                self._values.appendValue((int(value),))
        values = [each[0] for each in self._values.get()]
        yield row(key, f"list of {len(values)}", sum(values))

    def close(self) -> None: ...


class InAMap(StatefulProcessor):
    """Number of rows of each value, in a map state; emits the values and the greatest number."""

    def init(self, handle: Any) -> None:
        self._times = handle.getMapState("times", "v long", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for value in map(int, frame["v"]):
                before = self._times.getValue((value,))[0] if self._times.containsKey((value,)) else 0
                self._times.updateValue((value,), (before + 1,))
        times = {each[0][0]: each[1][0] for each in self._times.iterator()}
        yield row(key, f"map of {sorted(times)}", max(times.values()))

    def close(self) -> None: ...


class UntilIdle(StatefulProcessor):
    """Total of a key when a timer of event time fires, `IDLE_MS` after its newest row; then the key starts again."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        total, newest_ms = self._total.get()[0] if self._total.exists() else 0, 0
        for frame in rows:
            total += int(frame["v"].sum())
            newest_ms = max(newest_ms, newest_of(frame))
        for each in list(self._handle.listTimers()):
            self._handle.deleteTimer(each)
        self._total.update((total,))
        self._handle.registerTimer(max(newest_ms + IDLE_MS, timerValues.getCurrentWatermarkInMs() + 1))
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        total = self._total.get()[0]
        self._total.clear()
        yield row(key, "timer", total)

    def close(self) -> None: ...


class NextBatch(StatefulProcessor):
    """Total of a key when a timer of processing time fires, which is due at once: in the next batch."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        total = self._total.get()[0] if self._total.exists() else 0
        self._total.update((total + sum(int(frame["v"].sum()) for frame in rows),))
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield row(key, "next", self._total.get()[0])

    def close(self) -> None: ...


class ForAnHour(StatefulProcessor):
    """Running total, in a value state that expires after an hour."""

    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "total long", 3_600_000)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        total = self._total.get()[0] if self._total.exists() else 0
        total += sum(int(frame["v"].sum()) for frame in rows)
        self._total.update((total,))
        yield row(key, "hour", total)

    def close(self) -> None: ...
