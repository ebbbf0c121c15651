"""NEXMark q12, processing-time windows: each bidder's number of bids in ten seconds of the machine's clock.

The machine's clock assigns a bid to its window, so only each bidder's sum over the windows is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    import spark_ckpt as ckpt
    from benchmarks.nexmark.events import Events
    from spark_ckpt.tasks.operators.vectorized import KeyBatch, KeyResult

COLUMNS = {"bidder": "long", "bid_count": "long", "starttime": "time", "endtime": "time"}
WINDOW_MS = 10_000


def expected(events: Events) -> pd.DataFrame:
    return events.bid.groupby("bidder").size().rename("bid_count").reset_index()


def settled(found: pd.DataFrame) -> pd.DataFrame:
    """Sum each bidder's windows. Ignore windows of another length and duplicate rows."""
    whole = (found["endtime"] - found["starttime"] == WINDOW_MS) & ~found.duplicated(["bidder", "starttime"])
    return found[whole].groupby("bidder", as_index=False)["bid_count"].sum()


def spark_ckpt_vectorised(records: ckpt.Stream) -> ckpt.Stream:
    from benchmarks.nexmark.streams import of

    return (
        of(records, bid="bidder LONG")
        .select("bid.bidder")
        .groupBy("bidder")
        .applyVectorized(
            bids_per_window,
            "bidder long, bid_count long, starttime timestamp, endtime timestamp",
            "start_ms long, bids long",
            timeoutConf="ProcessingTimeTimeout",
        )
    )


def bids_per_window(batch: KeyBatch) -> KeyResult:
    """Emit windows that are over; keep the open one of each bidder."""
    import numpy as np
    import pyarrow as pa

    import spark_ckpt as ckpt

    open_ms = batch.processing_ms - batch.processing_ms % WINDOW_MS
    start_ms, bids = batch.state_values("start_ms", open_ms), batch.state_values("bids")
    over = start_ms < open_ms
    moments = {name: start_ms[over] + more for name, more in (("starttime", 0), ("endtime", WINDOW_MS))}
    times = {name: pa.array(each, pa.timestamp("ms", "UTC")) for name, each in moments.items()}
    output = pa.table({"bidder": batch.keys.column("bidder").filter(pa.array(over)), "bid_count": bids[over], **times})
    if batch.timed_out:
        return ckpt.KeyResult(output, remove=np.full(len(batch), True))

    bids = np.where(over, 0, bids) + np.bincount(batch.key_index, minlength=len(batch))
    state = pa.table({"start_ms": np.full(len(batch), open_ms), "bids": bids})
    return ckpt.KeyResult(output, state, timeout_ms=np.full(len(batch), open_ms + WINDOW_MS))


flink_sql = """
    SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
    FROM TABLE(TUMBLE(TABLE B, DESCRIPTOR(p_time), INTERVAL '10' SECOND))
    GROUP BY bidder, window_start, window_end
"""
