"""A sink that stages like any other and publishes nothing: the rest is the cost of staging and of its epochs."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_ckpt.connector import EpochOutput, Publisher, PublishReceipt, SinkContext, StagePlan


class NullPublisher:
    """Publishes nothing."""

    def publish(self, output: EpochOutput) -> PublishReceipt:
        return PublishReceipt(output.epoch, sum(file.rows for file in output.files), replayed=False)

    def close(self) -> None: ...


class NullSink:
    """Implements `spark_ckpt.connector.Sink`."""

    def check(self, spark: SparkSession, schema: StructType) -> None: ...

    def stage(self, schema: StructType) -> StagePlan:
        return StagePlan()

    def publisher(self, spark: SparkSession, context: SinkContext) -> Publisher:
        return NullPublisher()

    def describe(self) -> Mapping[str, str]:
        return {"kind": "null"}
