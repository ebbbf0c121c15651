"""NEXMark q19, top ten: the highest bids of each auction.

A running answer: the last row of an auction and a rank counts. Bids of one price may be ranked either way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import pandas as pd
    import pyarrow as pa

    import spark_ckpt as ckpt
    from benchmarks.nexmark.events import Events
    from spark_ckpt.tasks.operators.vectorized import KeyBatch, KeyResult

COLUMNS = {
    "auction": "long", "bidder": "long", "price": "long", "channel": "text", "url": "text", "dateTime": "time", "extra": "text",
    "rank_number": "long",
}  # fmt: skip
KEY = ("auction", "rank_number")
MOST = 10


def expected(events: Events) -> pd.DataFrame:
    """Each bid at its rank, then at the other ranks of bids with its price."""
    import pandas as pd

    bids = events.bid.sort_values(["auction", "price"], ascending=[True, False], kind="stable")
    rank = bids.groupby("auction").cumcount() + 1
    of_price = rank.groupby([bids["auction"], bids["price"]])
    first, last = of_price.transform("min"), of_price.transform("max")
    ranked = [bids.assign(rank_number=rank)[rank <= MOST]]
    for other in range(1, MOST + 1):
        could = (first <= other) & (other <= last) & (rank != other)
        ranked.append(bids[could].assign(rank_number=other))
    return pd.concat(ranked)


def settled(found: pd.DataFrame) -> pd.DataFrame:
    """Keep only one rank of a bid that has two."""
    return found.drop_duplicates([name for name in COLUMNS if name != "rank_number"])


BID = "bidder long, price long, channel string, url string, dateTime long, extra string"


def spark_ckpt_vectorised(records: ckpt.Stream) -> ckpt.Stream:
    """Select the highest bids in each source task, then of the batch."""
    highest = records.select("value").mapInArrow(highest_of_task, f"auction long, {BID}")
    ranked = highest.groupBy("auction").applyVectorized(
        top_bids, f"auction long, {BID}, rank_number long", f"bids array<struct<{BID}>>"
    )
    return ranked.selectExpr(
        "auction", "bidder", "price", "channel", "url", "timestamp_millis(dateTime) AS dateTime", "extra", "rank_number"
    )


def highest_of_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from benchmarks.nexmark.streams import all_of
    from spark_ckpt.store.ddl import arrow_schema

    bids = all_of(batches, "bid", arrow_schema(f"auction long, {BID}"))
    chosen, _ = highest(bids["auction"].to_numpy(), bids["price"].to_numpy())
    yield from bids.take(pa.array(chosen)).to_batches()


def highest(auction: np.ndarray, price: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the highest bids, by auction and rank, and their ranks from 0. Of bids with one price the first ranks higher."""
    import numpy as np

    order = np.lexsort((-price, auction))
    begins = np.flatnonzero(np.diff(auction[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    return order[rank < MOST], rank[rank < MOST]


def top_bids(batch: KeyBatch) -> KeyResult:
    """Emit the ranks whose bid has changed."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    import spark_ckpt as ckpt
    from benchmarks.nexmark.streams import lists

    kept = batch.state["bids"].combine_chunks()
    before = pa.Table.from_struct_array(kept.flatten())
    bids = pa.concat_tables([before, batch.rows.select(before.column_names)]).combine_chunks()
    auction = np.concatenate([pc.list_parent_indices(kept).to_numpy(), batch.key_index])
    chosen, rank = highest(auction, bids["price"].to_numpy())
    top, auction = bids.take(pa.array(chosen)).combine_chunks(), auction[chosen]

    had = np.cumsum(np.append(0, pc.list_value_length(kept).fill_null(0).to_numpy()))[:-1]
    other = (chosen >= len(before)) | (chosen != had[auction] + rank)
    output = top.filter(pa.array(other)).append_column("rank_number", pa.array(rank[other] + 1))
    output = output.append_column("auction", batch.keys["auction"].take(pa.array(auction[other])))
    state = pa.table({"bids": lists(top.to_struct_array().combine_chunks(), auction, len(batch))})
    return ckpt.KeyResult(output, state, np.bincount(auction[other], minlength=len(batch)) > 0)


flink_columns = """
    auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `dateTime` TIMESTAMP_LTZ(3), extra STRING,
    rank_number BIGINT, PRIMARY KEY (auction, rank_number) NOT ENFORCED
"""
flink_sql = """
    SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number FROM bid)
    WHERE rank_number <= 10
"""
