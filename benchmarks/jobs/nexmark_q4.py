"""NEXMark q4, average price of the winning bids so far, per category. A bid counts if its event time is within the auction; the
average is an integer, as Flink's average of integers is.

A running answer: the last row of a category counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    import spark_ckpt as ckpt
    from benchmarks.nexmark.events import Events
    from spark_ckpt.tasks.operators.vectorized import KeyBatch, KeyResult

COLUMNS = {"category": "long", "final": "long"}
KEY = ("category",)


def expected(events: Events) -> pd.DataFrame:
    auctions = events.auction[["id", "category", "dateTime", "expires"]]
    pairs = events.bid[["auction", "price", "dateTime"]].merge(
        auctions, left_on="auction", right_on="id", suffixes=("", "_opened")
    )
    in_time = pairs[(pairs["dateTime"] >= pairs["dateTime_opened"]) & (pairs["dateTime"] <= pairs["expires"])]
    winning = in_time.groupby(["id", "category"])["price"].max().groupby("category")
    return (winning.sum() // winning.size()).rename("final").reset_index()


WINNING = "category long, opened long, expires long, best long, waiting array<struct<at long, price long>>"


def spark_ckpt_vectorised(records: ckpt.Stream) -> ckpt.Stream:
    import spark_ckpt as ckpt
    from benchmarks.nexmark.streams import of

    auction, bid = "id LONG, category LONG, dateTime LONG, expires LONG", "auction LONG, price LONG, dateTime LONG"
    both = of(records, auction=auction, bid=bid).selectExpr(
        "coalesce(auction.id, bid.auction) AS auction",
        "auction.category",
        "auction.dateTime AS opened",
        "auction.expires",
        "bid.dateTime AS at",
        "bid.price",
    )
    changes = both.groupBy("auction").applyVectorized(
        winning_bids, "category long, gained long, auctions long", WINNING, name="winning_bids"
    )
    totals = changes.groupBy("category").agg(
        "update", "average_price", total=ckpt.sum("gained"), auctions=ckpt.sum("auctions")
    )
    return totals.selectExpr("category", "total div auctions AS final")


def winning_bids(batch: KeyBatch) -> KeyResult:
    """Increase of each auction's highest bid in time, and a flag for the auction's first one. Bids that come before their auction
    wait for it.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    import spark_ckpt as ckpt

    opening = batch.rows.column("category").is_valid().to_numpy()
    category, opened, expires = (batch.state_values(name, -1).copy() for name in ("category", "opened", "expires"))
    for name, per_auction in (("category", category), ("opened", opened), ("expires", expires)):
        per_auction[batch.key_index[opening]] = batch.values(name)[opening]

    waiting = batch.state.column("waiting").combine_chunks()
    waited = waiting.flatten()
    auction = np.concatenate([pc.list_parent_indices(waiting).to_numpy(), batch.key_index[~opening]])
    at = np.concatenate([waited.field("at").to_numpy(), batch.values("at")[~opening]])
    price = np.concatenate([waited.field("price").to_numpy(), batch.values("price")[~opening]])

    known = category[auction] >= 0
    in_time = known & (opened[auction] <= at) & (at <= expires[auction])
    before = batch.state_values("best")
    best = before.copy()
    np.maximum.at(best, auction[in_time], price[in_time])

    rest = np.flatnonzero(~known)[np.argsort(auction[~known], kind="stable")]
    bids = pa.StructArray.from_arrays([pa.array(at[rest]), pa.array(price[rest])], ["at", "price"])
    starts = np.searchsorted(auction[rest], np.arange(len(batch) + 1)).astype(np.int32)
    kept = [pa.array(values) for values in (category, opened, expires, best)]
    state = pa.table(
        [*kept, pa.ListArray.from_arrays(starts, bids)], ["category", "opened", "expires", "best", "waiting"]
    )

    rose = best > before
    output = {"category": category, "gained": best - before, "auctions": (before == 0).astype(np.int64)}
    changed = rose | batch.segments.any(opening) | (np.diff(starts) > 0)
    return ckpt.KeyResult(pa.table({name: values[rose] for name, values in output.items()}), state, changed)


flink_columns = "category BIGINT, `final` BIGINT, PRIMARY KEY (category) NOT ENFORCED"
flink_sql = """
    SELECT Q.category, AVG(Q.`final`) AS `final`
    FROM (
        SELECT MAX(B.price) AS `final`, A.category
        FROM auction A, bid B
        WHERE A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
        GROUP BY A.id, A.category
    ) Q
    GROUP BY Q.category
"""
