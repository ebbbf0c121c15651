"""A function with a timeout in event time that both a plain query and a job run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

GAP_MS = 20_000


def sessions(key: tuple[str], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Emit a user's number of records after `GAP_MS` of event time without one."""
    if state.hasTimedOut:
        yield pd.DataFrame({"user": [key[0]], "n": [state.get[0]]})
        state.remove()
        return
    rows = pd.concat(list(frames))
    state.update(((state.get[0] if state.exists else 0) + len(rows),))
    state.setTimeoutTimestamp(int(rows["at"].max().timestamp() * 1000) + GAP_MS)
