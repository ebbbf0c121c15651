"""NEXMark q1, currency conversion: every bid with its price in euros."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    import spark_ckpt as ckpt
    from benchmarks.nexmark.events import Events

COLUMNS = {"auction": "long", "bidder": "long", "price": "thousandths", "dateTime": "time", "extra": "text"}
EURO_THOUSANDTHS = 908


def expected(events: Events) -> pd.DataFrame:
    return events.bid.assign(price=events.bid["price"] * EURO_THOUSANDTHS)


def spark_ckpt_builtin(records: ckpt.Stream) -> ckpt.Stream:
    from benchmarks.nexmark.streams import of

    bids = of(records, bid="auction LONG, bidder LONG, price LONG, dateTime LONG, extra STRING")
    return bids.selectExpr(
        "bid.auction",
        "bid.bidder",
        "0.908 * bid.price AS price",
        "timestamp_millis(bid.dateTime) AS dateTime",
        "bid.extra",
    )


def spark_ckpt_vectorised(records: ckpt.Stream) -> ckpt.Stream:
    from benchmarks.nexmark.streams import vectorised

    bids = vectorised(records, "bid", "auction LONG, bidder LONG, price LONG, dateTime LONG, extra STRING")
    return bids.selectExpr(
        "auction", "bidder", "0.908 * price AS price", "timestamp_millis(dateTime) AS dateTime", "extra"
    )


flink_sql = "SELECT auction, bidder, 0.908 * price AS price, `dateTime`, extra FROM bid"
