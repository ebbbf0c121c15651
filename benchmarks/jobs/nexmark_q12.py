"""NEXMark q12, processing-time windows: how many bids each bidder made in ten seconds of the machine's clock.

Which window a bid falls into is the machine's affair, so what is compared is each bidder's sum over the windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd
    from pyspark.sql.streaming.state import GroupState

    import spark_ckpt as ckpt
    from benchmarks.nexmark.events import Events

COLUMNS = {"bidder": "long", "bid_count": "long", "starttime": "time", "endtime": "time"}
WINDOW_MS = 10_000


def expected(events: Events) -> pd.DataFrame:
    return events.bid.groupby("bidder").size().rename("bid_count").reset_index()


def settled(found: pd.DataFrame) -> pd.DataFrame:
    """A window of another length, or a second row of one, is no answer."""
    whole = (found["endtime"] - found["starttime"] == WINDOW_MS) & ~found.duplicated(["bidder", "starttime"])
    return found[whole].groupby("bidder", as_index=False)["bid_count"].sum()


def spark_ckpt_dropin(records: ckpt.Stream) -> ckpt.Stream:
    from benchmarks.nexmark.streams import of

    return (
        of(records, bid="bidder LONG")
        .select("bid.bidder")
        .groupBy("bidder")
        .applyInPandasWithState(
            bids_per_window,
            "bidder long, bid_count long, starttime timestamp, endtime timestamp",
            "start_ms long, bids long",
            "append",
            "ProcessingTimeTimeout",
        )
    )


def bids_per_window(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[tuple[object, ...]]:
    """The window that is open, and the one before when it is over."""
    now_ms = state.getCurrentProcessingTimeMs()
    start_ms, bids = state.get if state.exists else (now_ms - now_ms % WINDOW_MS, 0)
    if now_ms >= start_ms + WINDOW_MS:
        yield window_of(key[0], start_ms, bids)
        start_ms, bids = now_ms - now_ms % WINDOW_MS, 0
    if state.hasTimedOut:
        state.remove()
        return
    bids += sum(len(frame) for frame in frames)
    state.update((start_ms, bids))
    state.setTimeoutDuration(start_ms + WINDOW_MS - now_ms)


def window_of(bidder: int, start_ms: int, bids: int) -> tuple[object, ...]:
    from datetime import UTC, datetime

    start, end = (datetime.fromtimestamp(each / 1000, UTC) for each in (start_ms, start_ms + WINDOW_MS))
    return bidder, bids, start, end


flink_sql = """
    SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
    FROM TABLE(TUMBLE(TABLE B, DESCRIPTOR(p_time), INTERVAL '10' SECOND))
    GROUP BY bidder, window_start, window_end
"""
