"""Sessions per key, ended by a pause: `key,n,session,rows,total`, one output per input.

A record more than `PAUSE_MS` of event time after the key's previous one begins the key's next session. `session` counts from 1; `rows`
and `total` are the session's records and amounts so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

PAUSE_MS = 30_000


def expected(inputs: pd.DataFrame) -> pd.Series:
    """`session,rows,total`."""
    pauses = inputs.groupby("key", sort=False)["event_ms"].diff() > PAUSE_MS
    session = pauses.groupby(inputs["key"], sort=False).cumsum().astype(int) + 1
    one = inputs.assign(session=session).groupby(["key", "session"], sort=False)
    parts = session, one.cumcount() + 1, one["amount"].cumsum()
    return parts[0].astype(str) + "," + parts[1].astype(str) + "," + parts[2].astype(str)
