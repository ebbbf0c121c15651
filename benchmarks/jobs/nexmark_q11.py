"""NEXMark q11, user sessions: each bidder's number of bids until a pause of more than ten seconds."""

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

COLUMNS = {"bidder": "long", "bid_count": "long", "starttime": "time", "endtime": "time"}
GAP_MS = 10_000
"""A bid exactly this long after another one is in the same session, as in Flink."""


def expected(events: Events) -> pd.DataFrame:
    bids = events.bid[["bidder", "dateTime"]].sort_values(["bidder", "dateTime"])
    pauses = bids["dateTime"].diff() > GAP_MS
    session = (pauses | (bids["bidder"] != bids["bidder"].shift())).cumsum()
    found = bids.groupby(session).agg(
        bidder=("bidder", "first"),
        bid_count=("bidder", "size"),
        starttime=("dateTime", "min"),
        endtime=("dateTime", "max"),
    )
    found["endtime"] += GAP_MS
    return found[found["endtime"] <= events.last_watermark_ms]


SESSION = "first_ms long, last_ms long, bids long"


def spark_ckpt_vectorised(records: ckpt.Stream) -> ckpt.Stream:
    """Source tasks turn bids into parts of sessions, and only these are shuffled."""
    parts = records.select("value").mapInArrow(sessions_of_task, f"bidder long, {SESSION}, at timestamp")
    return (
        parts.withWatermark("at", "4 seconds")
        .groupBy("bidder")
        .applyVectorized(
            user_sessions,
            "bidder long, bid_count long, starttime timestamp, endtime timestamp",
            f"open array<struct<{SESSION}>>",
            timeoutConf="EventTimeTimeout",
        )
    )


def sessions_of_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import numpy as np
    import pyarrow as pa

    from benchmarks.nexmark.streams import all_of

    bids = all_of(batches, "bid", pa.schema([("bidder", pa.int64()), ("dateTime", pa.int64())]))
    at_ms = bids["dateTime"].to_numpy()
    bidder, first_ms, last_ms, count = merged(bids["bidder"].to_numpy(), at_ms, at_ms, np.ones(len(bids), np.int64))
    at = pa.array(last_ms * 1000, pa.timestamp("us", "UTC"))
    columns = {"bidder": bidder, "first_ms": first_ms, "last_ms": last_ms, "bids": count, "at": at}
    yield from pa.table(columns).to_batches()


def merged(
    key: np.ndarray, first_ms: np.ndarray, last_ms: np.ndarray, bids: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Merge parts into sessions, sorted by key and time."""
    import numpy as np

    if not len(key):
        return key, first_ms, last_ms, bids
    order = np.lexsort((first_ms, key))
    key, first_ms, last_ms, bids = (values[order] for values in (key, first_ms, last_ms, bids))
    other = np.diff(key, prepend=key[0]) != 0
    # Shift each key's times so far that no two keys overlap; the running maximum is then the end so far within the key.
    apart = np.cumsum(other) * (int(last_ms.max() - last_ms.min()) + 1)
    end_ms = np.maximum.accumulate(last_ms + apart) - apart
    begins = other | (first_ms - np.roll(end_ms, 1) > GAP_MS)
    begins[0] = True
    starts = np.flatnonzero(begins)
    return key[starts], first_ms[starts], np.maximum.reduceat(last_ms, starts), np.add.reduceat(bids, starts)


def user_sessions(batch: KeyBatch) -> KeyResult:
    """Emit sessions that the watermark has passed; keep the open ones of each bidder."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    import spark_ckpt as ckpt
    from benchmarks.nexmark.streams import lists

    kept = batch.state["open"].combine_chunks()
    before, names = kept.flatten(), ("first_ms", "last_ms", "bids")
    parts = [np.concatenate([before.field(name).to_numpy(), batch.values(name)]) for name in names]
    key, first_ms, last_ms, bids = merged(
        np.concatenate([pc.list_parent_indices(kept).to_numpy(), batch.key_index]), *parts
    )
    end_ms = last_ms + GAP_MS
    over = end_ms <= (batch.watermark_ms or 0)
    times = {"starttime": first_ms[over], "endtime": end_ms[over]}
    output = pa.table(
        {"bidder": batch.keys["bidder"].take(pa.array(key[over])), "bid_count": bids[over]}
        | {name: pa.array(each, pa.timestamp("ms", "UTC")) for name, each in times.items()}
    )
    sessions = pa.StructArray.from_arrays([pa.array(each[~over]) for each in (first_ms, last_ms, bids)], names)
    first, opened = np.unique(key[~over], return_index=True)
    timeout_ms = np.full(len(batch), -1)
    timeout_ms[first] = end_ms[~over][opened]
    state = pa.table({"open": lists(sessions, key[~over], len(batch))})
    return ckpt.KeyResult(output, state, remove=timeout_ms < 0, timeout_ms=timeout_ms)


flink_sql = """
    SELECT B.bidder, COUNT(*) AS bid_count,
        SESSION_START(B.`dateTime`, INTERVAL '10' SECOND) AS starttime,
        SESSION_END(B.`dateTime`, INTERVAL '10' SECOND) AS endtime
    FROM bid B
    GROUP BY B.bidder, SESSION(B.`dateTime`, INTERVAL '10' SECOND)
"""
