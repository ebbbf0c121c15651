"""NEXMark q18, last bid: of each bidder on each auction.

A running answer: the last row of a bidder and an auction counts. Of bids in the same millisecond any may be the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    import pyarrow as pa

    import spark_ckpt as ckpt
    from benchmarks.nexmark.events import Events
    from spark_ckpt.tasks.operators.vectorized import KeyBatch, KeyResult

COLUMNS = {
    "auction": "long", "bidder": "long", "price": "long", "channel": "text", "url": "text", "dateTime": "time", "extra": "text",
}  # fmt: skip
KEY = ("bidder", "auction")


def expected(events: Events) -> pd.DataFrame:
    newest = events.bid.groupby(list(KEY))["dateTime"].transform("max")
    return events.bid[events.bid["dateTime"] == newest]


BID = "auction long, bidder long, price long, channel string, url string, dateTime long, extra string"


def spark_ckpt_vectorised(records: ckpt.Stream) -> ckpt.Stream:
    """Select the newest bids in each source task, then of the batch. State holds only the newest bid's time."""
    newest = records.select("value").mapInArrow(newest_of_task, BID)
    last = newest.groupBy(*KEY).applyVectorized(last_bids, BID, "at long")
    return last.selectExpr(
        "auction", "bidder", "price", "channel", "url", "timestamp_millis(dateTime) AS dateTime", "extra"
    )


def newest_of_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import numpy as np

    from benchmarks.nexmark.streams import all_of
    from spark_ckpt.store.ddl import arrow_schema

    bids = all_of(batches, "bid", arrow_schema(BID))
    auction, bidder, at = (bids[name].to_numpy() for name in ("auction", "bidder", "dateTime"))
    order = np.lexsort((at, auction, bidder))
    last = np.append((np.diff(bidder[order]) != 0) | (np.diff(auction[order]) != 0), True)[: len(order)]
    yield from bids.take(order[last]).to_batches()


def last_bids(batch: KeyBatch) -> KeyResult:
    """Emit the bids that are at least as new as the newest so far."""
    import numpy as np
    import pyarrow as pa

    import spark_ckpt as ckpt

    at = batch.values("dateTime")
    newest = np.lexsort((at, batch.key_index))[np.cumsum(batch.segments.counts) - 1]
    newer = at[newest] >= batch.state_values("at", -1)
    return ckpt.KeyResult(batch.rows.take(newest[newer]), pa.table({"at": at[newest]}), newer)


flink_columns = """
    auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `dateTime` TIMESTAMP_LTZ(3), extra STRING,
    PRIMARY KEY (bidder, auction) NOT ENFORCED
"""
flink_sql = """
    SELECT auction, bidder, price, channel, url, `dateTime`, extra
    FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS rank_number FROM bid)
    WHERE rank_number <= 1
"""
