"""The computation of the demo's job, written as for Spark's own `applyInPandasWithState`."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator

import pandas as pd
from pyspark.sql.streaming.state import GroupState

LATE_MINUTES = 15
"""Delay in minutes from which a departure counts as late, as in the statistics of the FAA."""

STATE = "flights long, departures long, delay_minutes long, late_chain long, longest_late_chain long"
OUTPUT = (
    "departure string, carrier string, flight int, origin string, tailnum string, "
    "flights long, mean_delay double, late_chain long, longest_late_chain long"
)


def running_figures(
    key: tuple[Hashable, ...], frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[tuple[object, ...]]:
    """Yield one row for each flight of one aircraft: its figures as of this flight.

    Requires every flight once and in order.
    """
    flights, departures, delay, chain, longest = state.getOption or (0, 0, 0, 0, 0)
    for frame in frames:
        columns = (frame[name] for name in ("departure", "carrier", "flight", "origin", "dep_delay"))
        for departure, carrier, flight, origin, minutes in zip(*columns, strict=True):
            flights += 1
            if not math.isnan(minutes):  # a cancelled flight neither ends a chain nor makes it longer
                departures += 1
                delay += int(minutes)
                chain = chain + 1 if minutes >= LATE_MINUTES else 0
                longest = max(longest, chain)
            mean = delay / departures if departures else None
            yield departure, carrier, flight, origin, key[0], flights, mean, chain, longest
    state.update((flights, departures, delay, chain, longest))
