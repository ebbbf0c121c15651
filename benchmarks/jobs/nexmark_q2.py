"""NEXMark q2, selection: the bids on some auctions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    import spark_ckpt as ckpt
    from benchmarks.nexmark.events import Events

COLUMNS = {"auction": "long", "price": "long"}


def expected(events: Events) -> pd.DataFrame:
    return events.bid[events.bid["auction"] % 123 == 0]


def spark_ckpt_builtin(records: ckpt.Stream) -> ckpt.Stream:
    from benchmarks.nexmark.streams import of

    return of(records, bid="auction LONG, price LONG").select("bid.*").filter("auction % 123 = 0")


def spark_ckpt_vectorised(records: ckpt.Stream) -> ckpt.Stream:
    from benchmarks.nexmark.streams import vectorised

    return vectorised(records, "bid", "auction LONG, price LONG").filter("auction % 123 = 0")


flink_sql = "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0"
