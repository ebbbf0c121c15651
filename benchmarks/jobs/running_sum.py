"""Running sum and count per key, one output per input: `key,count,sum`."""

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


def expected(inputs: pd.DataFrame) -> pd.Series:
    """Sum of the key's amounts so far."""
    return inputs.groupby("key", sort=False)["amount"].cumsum().astype(str)


# -- spark_ckpt -----------------------------------------------------------------------------------------------------------


def spark_ckpt_builtin(records: ckpt.Stream) -> ckpt.Stream:
    import spark_ckpt as ckpt

    amounts = records.select("key", "amount").groupBy("key")
    return amounts.agg("each row", n=ckpt.count(), total=ckpt.sum("amount")).selectExpr(
        "key", "concat_ws(',', key, n, total) AS value"
    )


spark_ckpt_standby = spark_ckpt_builtin
spark_ckpt_standby_short = spark_ckpt_builtin
spark_ckpt_standby_far = spark_ckpt_builtin
spark_ckpt_every_batch = spark_ckpt_builtin
spark_ckpt_ahead = spark_ckpt_builtin


def spark_ckpt_vectorised(records: ckpt.Stream) -> ckpt.Stream:
    amounts = records.select("key", "amount").groupBy("key")
    return amounts.applyVectorized(add_up, "key string, value string", "n long, total long")


def add_up(batch: KeyBatch) -> KeyResult:
    """Add up all keys of a key group at once."""
    import pyarrow as pa

    import spark_ckpt as ckpt
    from benchmarks.systems.spark_ckpt import joined

    n = batch.cumulative_count(batch.state_values("n"))
    total = batch.cumulative_sum(batch.values("amount"), batch.state_values("total"))
    state = pa.table({"n": batch.last_per_key(n), "total": batch.last_per_key(total)})
    return ckpt.KeyResult(joined(batch.rows.column("key"), n, total), state)


def spark_ckpt_dropin(records: ckpt.Stream) -> ckpt.Stream:
    amounts = records.select("key", "amount").groupBy("key")
    return amounts.applyInPandasWithState(
        add_up_one_key, "key string, value string", "n long, total long", "append", "NoTimeout"
    )


def add_up_one_key(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[tuple[str, str]]:
    """Spark's own signature; it yields tuples, because a key has few rows in a batch."""
    n, total = state.getOption or (0, 0)
    for frame in frames:
        for amount in frame["amount"].tolist():
            n, total = n + 1, total + amount
            yield key[0], f"{key[0]},{n},{total}"
    state.update((n, total))


# -- Flink ----------------------------------------------------------------------------------------------------------------

flink_sql = """
    SELECT `key`, n, SUM(amount) OVER (PARTITION BY `key` ORDER BY `at` ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS total
    FROM input
"""


def pyflink(lines: DataStream) -> DataStream:
    from pyflink.common import Types

    keyed = lines.key_by(lambda line: line[: line.index(",")], key_type=Types.STRING())
    return keyed.process(sum_of_lines(), Types.STRING())


def sum_of_lines() -> KeyedProcessFunction:
    from pyflink.common import Types
    from pyflink.datastream import KeyedProcessFunction
    from pyflink.datastream.state import ValueStateDescriptor

    class Sum(KeyedProcessFunction):
        def open(self, context: RuntimeContext) -> None:
            self._total = context.get_state(ValueStateDescriptor("total", Types.LONG()))

        def process_element(self, line: str, context: KeyedProcessFunction.Context) -> Iterator[str]:
            key, n, amount, _ = line.split(",")
            total = (self._total.value() or 0) + int(amount)
            self._total.update(total)
            yield f"{key},{n},{total}"

    return Sum()


# -- Quix Streams ---------------------------------------------------------------------------------------------------------


def quix(records: StreamingDataFrame) -> StreamingDataFrame:
    return records.apply(add_one, stateful=True)


def add_one(value: bytes, state: State) -> bytes:
    """State is the last output's `count,sum`, as bytes: no JSON in the store or the changelog."""
    key, _, amount, _ = value.split(b",")
    count, total = state.get_bytes(b"sum", b"0,0").split(b",")
    text = b"%d,%d" % (int(count) + 1, int(total) + int(amount))
    state.set_bytes(b"sum", text)
    return key + b"," + text


# -- Bytewax --------------------------------------------------------------------------------------------------------------


def bytewax(records: Stream[KafkaSourceMessage[bytes, bytes]]) -> Stream[KafkaSinkMessage[bytes, bytes]]:
    """Batch operators and the lowest-level stateful one, which call Python least; processes exchange only key and amount."""
    from bytewax import operators as op
    from bytewax.connectors.kafka import KafkaSinkMessage

    class RunningSum(op.StatefulBatchLogic):
        def __init__(self, state: tuple[int, int] | None) -> None:
            self.count, self.total = state or (0, 0)

        def on_batch(self, values: list[int]) -> tuple[list[str], bool]:
            texts = []
            for amount in values:
                self.count += 1
                self.total += amount
                texts.append(f"{self.count},{self.total}")
            return texts, self.RETAIN

        def snapshot(self) -> tuple[int, int]:
            return self.count, self.total

    def parse(batch: list[KafkaSourceMessage[bytes, bytes]]) -> list[tuple[str, int]]:
        fields = [message.value.decode().split(",") for message in batch]
        return [(key, int(amount)) for key, _, amount, _ in fields]

    def write(batch: list[tuple[str, str]]) -> list[KafkaSinkMessage[bytes, bytes]]:
        return [KafkaSinkMessage(key.encode(), f"{key},{text}".encode()) for key, text in batch]

    sums = op.stateful_batch("sum", op.flat_map_batch("parse", records, parse), RunningSum)
    return op.flat_map_batch("write", sums, write)


# -- plain PySpark -----------------------------------------------------------------------------------------------------------

SUM = "n long, total long"


def pyspark_native(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    from benchmarks.systems.plain_pyspark import joined

    return joined(records.groupBy("key").agg(F.count("*").alias("n"), F.sum("amount").alias("total")))


def pyspark_pandas(records: DataFrame) -> DataFrame:
    from benchmarks.systems.plain_pyspark import joined

    groups = records.select("key", "amount").groupBy("key")
    sums = groups.applyInPandasWithState(sum_with_group_state, f"key string, {SUM}", SUM, "update", "NoTimeout")
    return joined(sums)


pyspark_pandas_5s = pyspark_pandas


def pyspark_transform(records: DataFrame) -> DataFrame:
    from benchmarks.systems.plain_pyspark import joined

    groups = records.select("key", "amount").groupBy("key")
    return joined(groups.transformWithStateInPandas(sum_processor(), f"key string, {SUM}", "Update", "None"))


def sum_with_group_state(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    n, total = state.getOption or (0, 0)
    for frame in frames:
        sums, n, total = running_sums(frame, n, total)
        yield sums
    state.update((n, total))


def sum_processor() -> StatefulProcessor:
    from pyspark.sql.streaming import StatefulProcessor

    class Sum(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._sum = handle.getValueState("sum", SUM)

        def handleInputRows(
            self, key: tuple[str], rows: Iterator[pd.DataFrame], timerValues: object
        ) -> Iterator[pd.DataFrame]:
            n, total = self._sum.get() or (0, 0)
            for frame in rows:
                sums, n, total = running_sums(frame, n, total)
                yield sums
            self._sum.update((n, total))

        def close(self) -> None: ...

    return Sum()


def running_sums(frame: pd.DataFrame, n: int, total: int) -> tuple[pd.DataFrame, int, int]:
    """Some records of one key, in the order of their topic: a key has one Kafka partition, and the preceding sort is stable."""
    import numpy as np
    import pandas as pd

    totals = frame["amount"].to_numpy().cumsum() + total
    numbers = np.arange(n + 1, n + 1 + len(frame))
    return pd.DataFrame({"key": frame["key"], "n": numbers, "total": totals}), n + len(frame), int(totals[-1])
