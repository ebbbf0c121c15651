"""Sessions per key, ended by a pause: `key,n,session,rows,total`, one output per input.

A record more than `PAUSE_MS` of event time after the key's previous one begins the key's next session. `session` counts
from 1; `rows` and `total` are the session's records and amounts so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSourceMessage
    from bytewax.dataflow import Stream
    from pyflink.datastream import DataStream, KeyedProcessFunction, RuntimeContext
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
    from pyspark.sql.streaming.state import GroupState
    from quixstreams.dataframe import StreamingDataFrame
    from quixstreams.state import State

    import spark_ckpt as ckpt
    from spark_ckpt.tasks.operators.vectorized import KeyBatch, KeyResult

PAUSE_MS = 30_000


def expected(inputs: pd.DataFrame) -> pd.Series:
    """`session,rows,total`."""
    pauses = inputs.groupby("key", sort=False)["event_ms"].diff() > PAUSE_MS
    session = pauses.groupby(inputs["key"], sort=False).cumsum().astype(int) + 1
    one = inputs.assign(session=session).groupby(["key", "session"], sort=False)
    parts = session, one.cumcount() + 1, one["amount"].cumsum()
    return parts[0].astype(str) + "," + parts[1].astype(str) + "," + parts[2].astype(str)


# -- Flink ----------------------------------------------------------------------------------------------------------------

# A window per (key, session) would keep each session for ever. So: the key's rows and sum so far, minus their values before the
# session, which LAST_VALUE keeps because it passes over NULL.
flink_sql = f"""
    SELECT `key`, n, session, so_far - rows_before AS `rows`, summed - total_before AS total
    FROM (
        SELECT `key`, n, so_far, summed,
            SUM(CASE WHEN begins THEN 1 ELSE 0 END) OVER key_so_far AS session,
            LAST_VALUE(CASE WHEN begins THEN so_far - 1 END) OVER key_so_far AS rows_before,
            LAST_VALUE(CASE WHEN begins THEN summed - amount END) OVER key_so_far AS total_before
        FROM (
            SELECT *, previous IS NULL OR event_ms - previous > {PAUSE_MS} AS begins
            FROM (
                SELECT *, LAG(event_ms) OVER key_so_far AS previous,
                    COUNT(*) OVER key_so_far AS so_far, SUM(amount) OVER key_so_far AS summed
                FROM input
                WINDOW key_so_far AS (PARTITION BY `key` ORDER BY `at`)
            )
        )
        WINDOW key_so_far AS (PARTITION BY `key` ORDER BY `at`)
    )
"""


def pyflink(lines: DataStream) -> DataStream:
    from pyflink.common import Types

    keyed = lines.key_by(lambda line: line[: line.index(",")], key_type=Types.STRING())
    return keyed.process(sessions_of_lines(), Types.STRING())


def sessions_of_lines() -> KeyedProcessFunction:
    from pyflink.common import Types
    from pyflink.datastream import KeyedProcessFunction
    from pyflink.datastream.state import ValueStateDescriptor

    class Sessions(KeyedProcessFunction):
        def open(self, context: RuntimeContext) -> None:
            self._last = context.get_state(ValueStateDescriptor("last", Types.PICKLED_BYTE_ARRAY()))

        def process_element(self, line: str, context: KeyedProcessFunction.Context) -> Iterator[str]:
            key, n, amount, event = line.split(",")
            event_ms = int(event)
            previous_ms, session, rows, total = self._last.value() or (None, 0, 0, 0)
            if previous_ms is None or event_ms - previous_ms > PAUSE_MS:
                session, rows, total = session + 1, 0, 0
            self._last.update((event_ms, session, rows + 1, total + int(amount)))
            yield f"{key},{n},{session},{rows + 1},{total + int(amount)}"

    return Sessions()


# -- Quix Streams ---------------------------------------------------------------------------------------------------------


def quix(records: StreamingDataFrame) -> StreamingDataFrame:
    return records.apply(extend_one, stateful=True)


def extend_one(value: bytes, state: State) -> bytes:
    """State is `n,session,rows,total,event_ms`, as bytes: no JSON in the store or the changelog."""
    key, _, amount, event = value.split(b",")
    event_ms = int(event)
    kept = state.get_bytes(b"session")
    n, session, rows, total, last_ms = map(int, kept.split(b",")) if kept else (0, 1, 0, 0, event_ms)
    if event_ms - last_ms > PAUSE_MS:
        session, rows, total = session + 1, 0, 0
    text = b"%d,%d,%d,%d" % (n + 1, session, rows + 1, total + int(amount))
    state.set_bytes(b"session", text + b"," + event)
    return key + b"," + text


# -- Bytewax --------------------------------------------------------------------------------------------------------------


def bytewax(records: Stream[KafkaSourceMessage[bytes, bytes]]) -> Stream[KafkaSinkMessage[bytes, bytes]]:
    """Batch operators and the lowest-level stateful one, which call Python least; processes exchange only the fields of the job."""
    from bytewax import operators as op
    from bytewax.connectors.kafka import KafkaSinkMessage

    class Sessions(op.StatefulBatchLogic):
        def __init__(self, state: tuple[int, ...] | None) -> None:
            self.state = state or (0, 1, 0, 0, None)

        def on_batch(self, values: list[tuple[int, int]]) -> tuple[list[str], bool]:
            n, session, rows, total, last_ms = self.state
            texts = []
            for amount, event_ms in values:
                if last_ms is not None and event_ms - last_ms > PAUSE_MS:
                    session, rows, total = session + 1, 0, 0
                n, rows, total, last_ms = n + 1, rows + 1, total + amount, event_ms
                texts.append(f"{n},{session},{rows},{total}")
            self.state = (n, session, rows, total, last_ms)
            return texts, self.RETAIN

        def snapshot(self) -> tuple[int | None, ...]:
            return self.state

    def parse(batch: list[KafkaSourceMessage[bytes, bytes]]) -> list[tuple[str, tuple[int, int]]]:
        fields = [message.value.decode().split(",") for message in batch]
        return [(key, (int(amount), int(event_ms))) for key, _, amount, event_ms in fields]

    def write(batch: list[tuple[str, str]]) -> list[KafkaSinkMessage[bytes, bytes]]:
        return [KafkaSinkMessage(key.encode(), f"{key},{text}".encode()) for key, text in batch]

    sessions = op.stateful_batch("sessions", op.flat_map_batch("parse", records, parse), Sessions)
    return op.flat_map_batch("write", sessions, write)


# -- plain PySpark -----------------------------------------------------------------------------------------------------------

SESSION_ROW = "key string, n long, session long, rows long, total long"
SESSION_STATE = "n long, session long, rows long, total long, last_ms long"


def pyspark_pandas(records: DataFrame) -> DataFrame:
    from benchmarks.systems.plain_pyspark import joined

    groups = records.select("key", "amount", "event_ms").groupBy("key")
    sessions = groups.applyInPandasWithState(
        sessions_with_group_state, SESSION_ROW, SESSION_STATE, "update", "NoTimeout"
    )
    return joined(sessions)


pyspark_pandas_5s = pyspark_pandas


def pyspark_transform(records: DataFrame) -> DataFrame:
    from benchmarks.systems.plain_pyspark import joined

    groups = records.select("key", "amount", "event_ms").groupBy("key")
    return joined(groups.transformWithStateInPandas(session_processor(), SESSION_ROW, "Update", "None"))


def sessions_with_group_state(
    key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    carried = state.getOption
    for frame in frames:
        rows, carried = running_sessions(frame, carried)
        yield rows
    state.update(carried)


def session_processor() -> StatefulProcessor:
    from pyspark.sql.streaming import StatefulProcessor

    class Sessions(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._state = handle.getValueState("session", SESSION_STATE)

        def handleInputRows(
            self, key: tuple[str], rows: Iterator[pd.DataFrame], timerValues: object
        ) -> Iterator[pd.DataFrame]:
            carried = self._state.get()
            for frame in rows:
                sessions, carried = running_sessions(frame, carried)
                yield sessions
            self._state.update(carried)

        def close(self) -> None: ...

    return Sessions()


def running_sessions(frame: pd.DataFrame, carried: tuple[int, ...] | None) -> tuple[pd.DataFrame, tuple[int, ...]]:
    """Some records of one key, in the order of their topic; `carried` is `SESSION_STATE`."""
    import numpy as np
    import pandas as pd

    event_ms, amount = frame["event_ms"].to_numpy(), frame["amount"].to_numpy()
    n, session, rows, total, last_ms = carried or (0, 1, 0, 0, event_ms[0])
    begins, place = np.diff(event_ms, prepend=last_ms) > PAUSE_MS, np.arange(len(frame))
    # Index at which each row's session began; -1: before this frame, so that the carried part counts too.
    first, sums = np.maximum.accumulate(np.where(begins, place, -1)), amount.cumsum()
    columns = {
        "n": n + 1 + place,
        "session": session + begins.cumsum(),
        "rows": place - first + np.where(first < 0, rows, 1),
        "total": sums + np.where(first < 0, total, (amount - sums)[first]),
    }
    last = [int(values[-1]) for values in (*columns.values(), event_ms)]
    return pd.DataFrame({"key": frame["key"], **columns}), tuple(last)


# -- spark_ckpt -----------------------------------------------------------------------------------------------------------


def spark_ckpt_vectorised(records: ckpt.Stream) -> ckpt.Stream:
    events = records.select("key", "amount", "event_ms").groupBy("key")
    return events.applyVectorized(extend_all, "key string, value string", SESSION_STATE)


def extend_all(batch: KeyBatch) -> KeyResult:
    """Extend the sessions of all keys of a key group at once."""
    import numpy as np
    import pyarrow as pa

    import spark_ckpt as ckpt
    from benchmarks.systems.spark_ckpt import joined

    rows, event_ms, amount = batch.segments, batch.values("event_ms"), batch.values("amount")
    previous_ms = np.empty_like(event_ms)
    previous_ms[rows.order[1:]] = event_ms[rows.order[:-1]]
    first_ms = batch.first_per_key(event_ms)
    previous_ms[rows.first_rows] = np.where(batch.exists, batch.state_values("last_ms"), first_ms)
    begins, place = event_ms - previous_ms > PAUSE_MS, batch.cumulative_count()
    # Index in the batch at which each row's session began, from 1; 0: before it, so that the state's part counts too.
    began = batch.cumulative_max(np.where(begins, place, 0))
    first = rows.order[rows.starts[batch.key_index] + np.maximum(began, 1) - 1]
    sums = batch.cumulative_sum(amount)
    columns = {
        "n": batch.cumulative_count(batch.state_values("n")),
        "session": batch.cumulative_sum(begins.astype(np.int64), batch.state_values("session", 1)),
        "rows": np.where(began, place - began + 1, place + batch.per_row(batch.state_values("rows"))),
        "total": sums - np.where(began, (sums - amount)[first], -batch.per_row(batch.state_values("total"))),
    }
    state = {name: batch.last_per_key(values) for name, values in (columns | {"last_ms": event_ms}).items()}
    return ckpt.KeyResult(joined(batch.rows.column("key"), *columns.values()), pa.table(state))


def spark_ckpt_dropin(records: ckpt.Stream) -> ckpt.Stream:
    events = records.select("key", "amount", "event_ms").groupBy("key")
    return events.applyInPandasWithState(
        extend_one_key, "key string, value string", SESSION_STATE, "append", "NoTimeout"
    )


def extend_one_key(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[tuple[str, str]]:
    """Spark's own signature; it yields tuples, because a key has few rows in a batch."""
    n, session, rows, total, last_ms = state.getOption or (0, 1, 0, 0, None)
    for frame in frames:
        for amount, event_ms in zip(frame["amount"].tolist(), frame["event_ms"].tolist(), strict=True):
            if last_ms is not None and event_ms - last_ms > PAUSE_MS:
                session, rows, total = session + 1, 0, 0
            n, rows, total, last_ms = n + 1, rows + 1, total + amount, event_ms
            yield key[0], f"{key[0]},{n},{session},{rows},{total}"
    state.update((n, session, rows, total, last_ms))
