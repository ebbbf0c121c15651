"""Read the topic in Flink SQL: the table and the views of NEXMark's own Flink queries, times from milliseconds.

dateTime is a reserved word in Flink, so it is quoted.
"""

from __future__ import annotations

INPUT = """
    event_type INT,
    person ROW<id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING, `dateTime` BIGINT,
        extra STRING>,
    auction ROW<id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, `dateTime` BIGINT,
        expires BIGINT, seller BIGINT, category BIGINT, extra STRING>,
    bid ROW<auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `dateTime` BIGINT, extra STRING>,
    `dateTime` AS TO_TIMESTAMP_LTZ(
        CASE WHEN event_type = 0 THEN person.`dateTime` WHEN event_type = 1 THEN auction.`dateTime` ELSE bid.`dateTime` END, 3),
    WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND
"""
VIEWS = (
    """CREATE TEMPORARY VIEW person AS
    SELECT person.id, person.name, person.emailAddress, person.creditCard, person.city, person.state, `dateTime`, person.extra
    FROM events WHERE event_type = 0""",
    """CREATE TEMPORARY VIEW auction AS
    SELECT auction.id, auction.itemName, auction.description, auction.initialBid, auction.reserve, `dateTime`,
        TO_TIMESTAMP_LTZ(auction.expires, 3) AS expires, auction.seller, auction.category, auction.extra
    FROM events WHERE event_type = 1""",
    """CREATE TEMPORARY VIEW bid AS
    SELECT bid.auction, bid.bidder, bid.price, bid.channel, bid.url, `dateTime`, bid.extra
    FROM events WHERE event_type = 2""",
    "CREATE TEMPORARY VIEW B AS SELECT *, PROCTIME() AS p_time FROM bid",
)
SETTINGS = {
    "table.local-time-zone": "UTC",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
}
"""Settings of NEXMark's own Flink queries."""
