"""NEXMark q20, expanded bids: every bid on an auction in one category, with the auction. The join runs in both orders of arrival;
auctions of the category stay in the state for ever.
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
    "auction": "long", "bidder": "long", "price": "long", "channel": "text", "url": "text", "bid_dateTime": "time",
    "bid_extra": "text", "itemName": "text", "description": "text", "initialBid": "long", "reserve": "long",
    "auction_dateTime": "time", "expires": "time", "seller": "long", "category": "long", "auction_extra": "text",
}  # fmt: skip
CATEGORY = 10
IN_BOTH = ("dateTime", "extra")


def expected(events: Events) -> pd.DataFrame:
    auctions = events.auction[events.auction["category"] == CATEGORY].rename(columns={"id": "auction"})
    bids, auctions = (
        table.rename(columns={name: f"{kind}_{name}" for name in IN_BOTH})
        for kind, table in (("bid", events.bid), ("auction", auctions))
    )
    return bids.merge(auctions, on="auction")


BID = {"bidder": "long", "price": "long", "channel": "string", "url": "string", "dateTime": "long", "extra": "string"}
AUCTION = {
    "category": "long", "itemName": "string", "description": "string", "initialBid": "long", "reserve": "long",
    "dateTime": "long", "expires": "long", "seller": "long", "extra": "string",
}  # fmt: skip


def fields(kind: str, columns: dict[str, str]) -> str:
    """Fields under the names of the output."""
    return ", ".join(f"{named(kind, name)} {of}" for name, of in columns.items())


def named(kind: str, name: str) -> str:
    return f"{kind}_{name}" if name in IN_BOTH else name


ROW = f"auction long, {fields('bid', BID)}, {fields('auction', AUCTION)}"


def spark_ckpt_vectorised(records: ckpt.Stream) -> ckpt.Stream:
    """Read the topic once. An auction comes once, so bids wait only until then; bids on other categories are dropped."""
    both = records.select("value").mapInArrow(bids_and_auctions, ROW)
    state = f"{fields('auction', AUCTION)}, waiting array<struct<{fields('bid', BID)}>>"
    expanded = both.groupBy("auction").applyVectorized(expanded_bids, ROW, state)
    return expanded.selectExpr(
        *(f"timestamp_millis({name}) AS {name}" if kind == "time" else name for name, kind in COLUMNS.items())
    )


def bids_and_auctions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Bids and auctions as rows of one schema. An auction in another category keeps only its id and category."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from benchmarks.nexmark.streams import read
    from spark_ckpt.store.ddl import arrow_schema

    form, kinds = arrow_schema(ROW), {"bid": {"auction": "long"} | BID, "auction": {"id": "long"} | AUCTION}
    asked = {kind: arrow_schema(", ".join(map(" ".join, columns.items()))) for kind, columns in kinds.items()}
    for batch in batches:
        for kind, schema in asked.items():
            for rows in read(batch["value"], kind, schema):
                found = {named(kind, name): rows[name] for name in schema.names}
                if kind == "auction":
                    wanted = pc.equal(rows["category"], CATEGORY)
                    of_wanted = {name: pc.if_else(wanted, each, None) for name, each in found.items()}
                    found = of_wanted | {"auction": rows["id"], "category": rows["category"]}
                arrays = [found[each.name] if each.name in found else pa.nulls(len(rows), each.type) for each in form]
                yield pa.RecordBatch.from_arrays(arrays, schema=form)


def expanded_bids(batch: KeyBatch) -> KeyResult:
    """Emit each bid on a known auction once; keep the others."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    import spark_ckpt as ckpt
    from benchmarks.nexmark.streams import lists

    rows, before = batch.rows, batch.state
    opening = rows["category"].is_valid().to_numpy()
    at = np.full(len(batch), -1)
    at[batch.key_index[opening]] = np.flatnonzero(opening)
    here = pa.array(at, mask=at < 0)
    known = {name: pc.coalesce(before[name], rows[name].take(here)) for name in before.column_names[:-1]}
    category = known["category"].fill_null(-1).to_numpy()

    kept = before["waiting"].combine_chunks()
    waited = pa.Table.from_struct_array(kept.flatten())
    came = np.flatnonzero(~opening)
    came = came[np.isin(category[batch.key_index[came]], (CATEGORY, -1))]
    bids = pa.concat_tables([waited, rows.select(waited.column_names).take(pa.array(came))])
    auction = np.concatenate([pc.list_parent_indices(kept).to_numpy(), batch.key_index[came]])

    met = pa.array(np.flatnonzero(category[auction] == CATEGORY))
    whose = pa.array(auction).take(met)
    output = {"auction": batch.keys["auction"].take(whose)} | {name: each.take(whose) for name, each in known.items()}
    for name in bids.column_names:
        output[name] = bids[name].take(met)

    rest = np.flatnonzero(category[auction] < 0)
    rest = rest[np.argsort(auction[rest], kind="stable")]
    left = bids.take(pa.array(rest)).to_struct_array().combine_chunks()
    waiting = lists(left, auction[rest], len(batch))
    changed = batch.segments.any(opening) | (pc.list_value_length(waiting).to_numpy() > 0)
    return ckpt.KeyResult(pa.table(output), pa.table(known | {"waiting": waiting}), changed)


flink_sql = f"""
    SELECT auction, bidder, price, channel, url, B.`dateTime` AS bid_dateTime, B.extra AS bid_extra, itemName, description,
        initialBid, reserve, A.`dateTime` AS auction_dateTime, expires, seller, category, A.extra AS auction_extra
    FROM bid AS B INNER JOIN auction AS A ON B.auction = A.id
    WHERE A.category = {CATEGORY}
"""
