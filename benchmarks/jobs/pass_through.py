"""Emit every record unchanged: no state, the least cost from Kafka to Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSourceMessage
    from bytewax.dataflow import Stream
    from pyflink.datastream import DataStream
    from pyspark.sql import DataFrame
    from quixstreams.dataframe import StreamingDataFrame

    import spark_ckpt as ckpt


def expected(inputs: pd.DataFrame) -> pd.Series:
    """`amount,event_ms`, unchanged."""
    return inputs["amount"].astype(str) + "," + inputs["event_ms"].astype(str)


def spark_ckpt_builtin(records: ckpt.Stream) -> ckpt.Stream:
    return records.select("key", "value")


# -- Flink ----------------------------------------------------------------------------------------------------------------

flink_sql = "SELECT `key`, n, amount, event_ms FROM input"


def pyflink(lines: DataStream) -> DataStream:
    """From source to sink in the JVM, without a Python function."""
    return lines


# -- Quix Streams and Bytewax ---------------------------------------------------------------------------------------------


def quix(records: StreamingDataFrame) -> StreamingDataFrame:
    return records


def bytewax(records: Stream[KafkaSourceMessage[bytes, bytes]]) -> Stream[KafkaSinkMessage[bytes, bytes]]:
    from bytewax import operators as op

    return op.flat_map_batch("to_sink", records, lambda batch: [message.to_sink() for message in batch])


# -- plain PySpark -----------------------------------------------------------------------------------------------------------


def pyspark_native(records: DataFrame) -> DataFrame:
    return records.select("key", "value")
