"""NEXMark q3, local item suggestion: sellers in Oregon, Idaho and California in one category. The join of people and auctions runs
in both orders of arrival, and its state stays for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    import spark_ckpt as ckpt
    from benchmarks.nexmark.events import Events
    from spark_ckpt.tasks.operators.vectorized import KeyBatch, KeyResult

COLUMNS = {"name": "text", "city": "text", "state": "text", "id": "long"}


def expected(events: Events) -> pd.DataFrame:
    people = events.person[events.person["state"].isin(["OR", "ID", "CA"])]
    auctions = events.auction[events.auction["category"] == 10]
    return auctions[["id", "seller"]].merge(people.drop(columns="id").assign(seller=people["id"]), on="seller")


def spark_ckpt_builtin(records: ckpt.Stream) -> ckpt.Stream:
    from benchmarks.nexmark.streams import of

    people = of(records, person="id LONG, name STRING, city STRING, state STRING").select("person.*")
    auctions = of(records, auction="id LONG, seller LONG, category LONG").select("auction.*")
    sellers = people.filter("state IN ('OR', 'ID', 'CA')").withColumnRenamed("id", "seller")
    offers = auctions.filter("category = 10").select("id", "seller")
    return offers.join(sellers, on="seller", name="local_items").select("name", "city", "state", "id")


SELLER = "name string, city string, state string, waiting array<long>"


def spark_ckpt_vectorised(records: ckpt.Stream) -> ckpt.Stream:
    """Read the topic once. A person comes once, so auctions wait only until then."""
    from benchmarks.nexmark.streams import of

    person, auction = "id LONG, name STRING, city STRING, state STRING", "id LONG, seller LONG, category LONG"
    wanted = of(records, person=person, auction=auction).filter(
        "person.state IN ('OR', 'ID', 'CA') OR auction.category = 10"
    )
    both = wanted.selectExpr(
        "coalesce(person.id, auction.seller) AS seller", "person.name", "person.city", "person.state", "auction.id"
    )
    columns = "name string, city string, state string, id long"
    return both.groupBy("seller").applyVectorized(local_items, columns, SELLER, name="local_items")


def local_items(batch: KeyBatch) -> KeyResult:
    """Emit each auction of a known seller once; keep the others."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    import spark_ckpt as ckpt

    rows, before = batch.rows, batch.state
    came = np.flatnonzero(rows["id"].is_null())
    at = np.full(len(batch), -1)
    at[batch.key_index[came]] = came
    here = pa.array(at, mask=at < 0)
    known = {name: pc.coalesce(before[name], rows[name].take(here)) for name in ("name", "city", "state")}

    waiting = before["waiting"].combine_chunks()
    offered = np.flatnonzero(rows["id"].is_valid())
    seller = np.concatenate([pc.list_parent_indices(waiting).to_numpy(), batch.key_index[offered]])
    ids = np.concatenate([waiting.flatten().to_numpy(), rows["id"].take(pa.array(offered)).to_numpy()])

    met = known["name"].is_valid().to_numpy()[seller]
    output = pa.table({name: each.take(pa.array(seller[met])) for name, each in known.items()} | {"id": ids[met]})
    order = np.argsort(seller[~met], kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(seller[~met], minlength=len(batch)))])
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(ids[~met][order], pa.int64()))
    return ckpt.KeyResult(output, pa.table({**known, "waiting": lists}))


flink_sql = """
    SELECT P.name, P.city, P.state, A.id
    FROM auction AS A INNER JOIN person AS P ON A.seller = P.id
    WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')
"""
