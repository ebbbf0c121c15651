"""A stateful function that both a plain query and a job run, and its output: a row for every record, for any division into batches.

Each record is counted and added up by user. So a record that is lost, duplicated, or added to another user's state changes every
later row of its user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

Record = tuple[str, int, int]
"""User, its number among all records, amount."""

RECORD = "user string, seq long, amount long"
STATE = "n long, total long, last struct<seq: long, amount: long>"
OUTPUT = "user string, seq long, n long, total long"
USERS = 23


def records(first: int, count: int) -> list[Record]:
    return [(f"user-{seq % USERS}", seq, seq * 7 % 101) for seq in range(first, first + count)]


def add_up(key: tuple[str], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    n, total, last = state.get if state.exists else (0, 0, None)
    rows = pd.concat(list(frames)).sort_values("seq")
    counts, totals = n + 1 + pd.RangeIndex(len(rows)).to_series(), total + rows["amount"].cumsum()
    last = (int(rows["seq"].iloc[-1]), int(rows["amount"].iloc[-1]))
    state.update((n + len(rows), int(totals.iloc[-1]), last))
    yield pd.DataFrame(
        {"user": key[0], "seq": rows["seq"].to_numpy(), "n": counts.to_numpy(), "total": totals.to_numpy()}
    )


def rows_of(every: Iterable[Record]) -> list[tuple[str, int, int, int]]:
    """Output of an undisturbed run, computed independently."""
    n: dict[str, int] = {}
    total: dict[str, int] = {}
    found = []
    for user, seq, amount in every:
        n[user] = n.get(user, 0) + 1
        total[user] = total.get(user, 0) + amount
        found.append((user, seq, n[user], total[user]))
    return sorted(found)


def state_of(every: Iterable[Record]) -> dict[str, dict[str, object]]:
    """Final state of an undisturbed run."""
    every = list(every)
    last = {user: {"seq": seq, "amount": amount} for user, seq, amount in every}
    ends = {user: (n, total) for user, _, n, total in sorted(rows_of(every), key=lambda row: row[1])}
    return {user: {"n": n, "total": total, "last": last[user]} for user, (n, total) in ends.items()}
