"""NEXMark q5, hot items: the auctions with the most bids in the last ten seconds, every two seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.streaming.state import GroupState

    import spark_ckpt as ckpt
    from benchmarks.nexmark.events import Events

COLUMNS = {"auction": "long", "num": "long", "starttime": "time"}
SLIDE_MS, WINDOW_MS = 2000, 10_000


def expected(events: Events) -> pd.DataFrame:
    """Count every bid in each of its windows."""
    import pandas as pd

    last_start = events.bid["dateTime"] // SLIDE_MS * SLIDE_MS
    bids = events.bid[["auction"]]
    copies = [bids.assign(starttime=last_start - back) for back in range(0, WINDOW_MS, SLIDE_MS)]
    num = pd.concat(copies).groupby(["starttime", "auction"]).size().rename("num").reset_index()
    closed = num[num["starttime"] + WINDOW_MS <= events.last_watermark_ms]
    return closed[closed["num"] == closed.groupby("starttime")["num"].transform("max")]


PANES = "pane array<long>, auction array<long>, num array<long>, closed long"


def spark_ckpt_dropin(records: ckpt.Stream) -> ckpt.Stream:
    """Count bids per slide and auction in the source tasks; one key holds the slides of the open windows."""
    from benchmarks.nexmark.streams import of

    bids = of(records, bid="auction LONG, dateTime LONG").select("bid.*")
    counts = bids.mapInArrow(counted, "everything int, auction long, pane long, num long, at timestamp")
    return (
        counts.withWatermark("at", "4 seconds")
        .groupBy("everything")
        .applyInPandasWithState(
            hot_items, "auction long, num long, starttime timestamp", PANES, "append", "EventTimeTimeout"
        )
    )


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count one task's bids, per slide and auction."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.Table.from_batches(batches, pa.schema([("auction", pa.int64()), ("dateTime", pa.int64())]))
    pane = pc.multiply(pc.divide(table["dateTime"], SLIDE_MS), SLIDE_MS)
    groups = table.append_column("pane", pane).group_by(["auction", "pane"])
    counts = groups.aggregate([("dateTime", "count"), ("dateTime", "max")])
    columns = {
        "everything": pa.nulls(len(counts), pa.int32()).fill_null(0),
        "auction": counts["auction"],
        "pane": counts["pane"],
        "num": counts["dateTime_count"],
        "at": counts["dateTime_max"].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
    }
    yield from pa.table(columns).to_batches()


def hot_items(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Rows per batch: a batch costs a third of a second before its first record, so large batches suit a backlog best."""
    import numpy as np
    import pandas as pd

    pane, auction, num, closed = state.get if state.exists else ([], [], [], 0)
    parts = [pd.DataFrame({"pane": pane, "auction": auction, "num": num}, dtype=np.int64)]
    if not state.hasTimedOut:
        parts += [frame[["pane", "auction", "num"]] for frame in frames]
    slides = pd.concat(parts).groupby(["pane", "auction"], as_index=False)["num"].sum()
    watermark = state.getCurrentWatermarkMs()
    yield hottest(slides, closed, watermark)

    left = slides[slides["pane"] + WINDOW_MS > watermark]
    state.update((*(left[name].tolist() for name in ("pane", "auction", "num")), max(closed, watermark)))
    if len(left):
        oldest = max(int(left["pane"].min()) + SLIDE_MS, watermark + 1)
        state.setTimeoutTimestamp(-(-oldest // SLIDE_MS) * SLIDE_MS)


def hottest(slides: pd.DataFrame, after_ms: int, until_ms: int) -> pd.DataFrame:
    """Hottest auctions of the windows that end in (after_ms, until_ms]."""
    import pandas as pd

    copies = [slides.assign(start=slides["pane"] - back) for back in range(0, WINDOW_MS, SLIDE_MS)]
    due = pd.concat(each[(each["start"] + WINDOW_MS).between(after_ms + 1, until_ms)] for each in copies)
    num = due.groupby(["start", "auction"], as_index=False)["num"].sum()
    best = num[num["num"] == num.groupby("start")["num"].transform("max")]
    starttime = pd.to_datetime(best["start"], unit="ms")
    return pd.DataFrame({"auction": best["auction"], "num": best["num"], "starttime": starttime})


flink_sql = """
    SELECT AuctionBids.auction, AuctionBids.num, AuctionBids.starttime
    FROM (
        SELECT auction, COUNT(*) AS num, window_start AS starttime, window_end AS endtime
        FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
        GROUP BY auction, window_start, window_end
    ) AS AuctionBids
    JOIN (
        SELECT MAX(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime
        FROM (
            SELECT COUNT(*) AS num, window_start AS starttime, window_end AS endtime
            FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
            GROUP BY auction, window_start, window_end
        ) AS CountBids
        GROUP BY CountBids.starttime, CountBids.endtime
    ) AS MaxBids
    ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime AND AuctionBids.num >= MaxBids.maxn
"""
