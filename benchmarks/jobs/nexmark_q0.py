"""NEXMark q0, pass-through: every bid, parsed and written again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    import spark_ckpt as ckpt
    from benchmarks.nexmark.events import Events

COLUMNS = {"auction": "long", "bidder": "long", "price": "long", "dateTime": "time", "extra": "text"}


def expected(events: Events) -> pd.DataFrame:
    return events.bid[list(COLUMNS)]


def spark_ckpt_builtin(records: ckpt.Stream) -> ckpt.Stream:
    from benchmarks.nexmark.streams import of

    bids = of(records, bid="auction LONG, bidder LONG, price LONG, dateTime LONG, extra STRING")
    return bids.selectExpr(
        "bid.auction", "bid.bidder", "bid.price", "timestamp_millis(bid.dateTime) AS dateTime", "bid.extra"
    )


def spark_ckpt_vectorised(records: ckpt.Stream) -> ckpt.Stream:
    from benchmarks.nexmark.streams import vectorised

    bids = vectorised(records, "bid", "auction LONG, bidder LONG, price LONG, dateTime LONG, extra STRING")
    return bids.selectExpr("auction", "bidder", "price", "timestamp_millis(dateTime) AS dateTime", "extra")


flink_sql = "SELECT auction, bidder, price, `dateTime`, extra FROM bid"
