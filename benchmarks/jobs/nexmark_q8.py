"""NEXMark q8, monitor new users: people who came and opened an auction in the same ten seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    import spark_ckpt as ckpt
    from benchmarks.nexmark.events import Events

COLUMNS = {"id": "long", "name": "text", "starttime": "time"}
WINDOW_MS = 10_000


def expected(events: Events) -> pd.DataFrame:
    came = events.person.assign(starttime=events.person["dateTime"] // WINDOW_MS * WINDOW_MS)
    sold = events.auction.assign(starttime=events.auction["dateTime"] // WINDOW_MS * WINDOW_MS)
    sellers = sold[["seller", "starttime"]].drop_duplicates()
    return came.merge(sellers, left_on=["id", "starttime"], right_on=["seller", "starttime"])


def spark_ckpt_builtin(records: ckpt.Stream) -> ckpt.Stream:
    """A person comes once. The record that completes a row, person or first auction, emits it; no row waits for the end of the
    window, which only clears the state.
    """
    from pyspark.sql import functions as F

    import spark_ckpt as ckpt
    from benchmarks.nexmark.streams import of

    events = of(records, person="id LONG, name STRING, dateTime LONG", auction="seller LONG, dateTime LONG")
    seen = events.selectExpr(
        "coalesce(person.id, auction.seller) AS id",
        "person.name AS came",
        "auction.seller AS sold",
        "timestamp_millis(coalesce(person.dateTime, auction.dateTime)) AS at",
    ).withWatermark("at", "4 seconds")
    counted = seen.groupBy("id", F.window("at", "10 seconds")).agg(
        "each row", "new_users", person=ckpt.max("came"), sales=ckpt.count("sold")
    )
    complete = counted.filter(
        "person IS NOT NULL AND (sales = 1 AND sold IS NOT NULL OR sales > 0 AND came IS NOT NULL)"
    )
    return complete.selectExpr("id", "person AS name", "window.start AS starttime")


flink_sql = """
    SELECT P.id, P.name, P.starttime
    FROM (
        SELECT id, name, window_start AS starttime, window_end AS endtime
        FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
        GROUP BY id, name, window_start, window_end
    ) P
    JOIN (
        SELECT seller, window_start AS starttime, window_end AS endtime
        FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
        GROUP BY seller, window_start, window_end
    ) A
    ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime
"""
