"""NEXMark q7, highest bid of every ten seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.streaming.state import GroupState

    import spark_ckpt as ckpt
    from benchmarks.nexmark.events import Events

COLUMNS = {"auction": "long", "price": "long", "bidder": "long", "dateTime": "time", "extra": "text"}
WINDOW_MS = 10_000


def expected(events: Events) -> pd.DataFrame:
    start = events.bid["dateTime"] // WINDOW_MS * WINDOW_MS
    highest = events.bid["price"] == events.bid.groupby(start)["price"].transform("max")
    return events.bid[highest & (start + WINDOW_MS <= events.last_watermark_ms)]


BID = "auction long, price long, bidder long, dateTime long, extra string"
HIGHEST = f"bids array<struct<{BID}>>"


def spark_ckpt_dropin(records: ckpt.Stream) -> ckpt.Stream:
    """Select the highest bids of every window, first in the source tasks, then of the batch."""
    from pyspark.sql import functions as F

    from benchmarks.nexmark.streams import of

    bids = of(records, bid="auction LONG, price LONG, bidder LONG, dateTime LONG, extra STRING").select("bid.*")
    timed = bids.mapInArrow(highest_of_task, BID).withColumns(
        {"at": F.timestamp_millis("dateTime"), "start": F.expr(f"dateTime - dateTime % {WINDOW_MS}")}
    )
    highest = (
        timed.withWatermark("at", "4 seconds")
        .groupBy("start")
        .applyInPandasWithState(highest_bids, BID, HIGHEST, "append", "EventTimeTimeout")
    )
    return highest.withColumn("dateTime", F.timestamp_millis("dateTime"))


def highest_of_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Only these are shuffled."""
    import pyarrow as pa

    found: pa.Table | None = None
    for batch in batches:
        table = pa.table(batch)
        found = highest_of(table if found is None else pa.concat_tables([found, table]))
    if found is not None:
        yield from found.to_batches()


def highest_of(bids: pa.Table) -> pa.Table:
    """Highest bids of each window, by price."""
    import numpy as np

    window = bids["dateTime"].to_numpy() // WINDOW_MS
    price = bids["price"].to_numpy()
    windows, place = np.unique(window, return_inverse=True)
    most = np.zeros(len(windows), np.int64)
    np.maximum.at(most, place, price)
    return bids.take(np.flatnonzero(price == most[place]))


def highest_bids(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[tuple[object, ...]]:
    """Keep the highest bids so far, and emit all of them after the watermark has passed the window."""
    bids = [tuple(bid) for bid in state.get[0]] if state.exists else []
    if state.hasTimedOut:
        yield from bids
        state.remove()
        return
    for frame in frames:
        columns = (frame[name] for name in ("auction", "price", "bidder", "dateTime", "extra"))
        bids += zip(*(column.tolist() for column in columns), strict=True)
    most = max(price for _, price, *_ in bids)
    state.update(([bid for bid in bids if bid[1] == most],))
    state.setTimeoutTimestamp(key[0] + WINDOW_MS)


flink_sql = """
    SELECT B.auction, B.price, B.bidder, B.`dateTime`, B.extra
    FROM bid B
    JOIN (
        SELECT MAX(price) AS maxprice, window_end AS `dateTime`
        FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
        GROUP BY window_start, window_end
    ) B1
    ON B.price = B1.maxprice
    WHERE B.`dateTime` BETWEEN B1.`dateTime` - INTERVAL '10' SECOND AND B1.`dateTime`
"""
