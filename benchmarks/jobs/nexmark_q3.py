"""NEXMark q3, local item suggestion: who sells in Oregon, Idaho and California in one category. People and auctions are joined as
they come, whichever is first, and kept for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    import spark_ckpt as ckpt
    from benchmarks.nexmark.events import Events

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


flink_sql = """
    SELECT P.name, P.city, P.state, A.id
    FROM auction AS A INNER JOIN person AS P ON A.seller = P.id
    WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')
"""
