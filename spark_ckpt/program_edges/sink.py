"""Sending side of an edge between jobs: rows stay in the store, and the commit of their epoch is the publication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_ckpt.connector import EpochOutput, Publisher, PublishReceipt, SinkContext, StagePlan
from spark_ckpt.epochs.names import valid_name
from spark_ckpt.errors import GraphInvalid
from spark_ckpt.tasks.rows import arrow_schema, check_stageable


@dataclass(frozen=True, slots=True)
class EdgeSink:
    """A sink whose rows other jobs read from this job's store."""

    edge: str

    def __post_init__(self) -> None:
        valid_name("edge", self.edge)

    def named(self, name: str | None) -> str:
        """Return the name of the sink in the store. Raises `GraphInvalid` if the program gives it another one."""
        if name not in (None, self.edge):
            raise GraphInvalid(
                f"edge '{self.edge}' cannot be a sink named '{name}'",
                hint="readers find it by the edge's name: drop name=",
            )
        return self.edge

    def check(self, spark: SparkSession, schema: StructType) -> None:
        """Raise `GraphInvalid` for columns of one name, and for a struct without fields."""
        check_stageable(schema, f"edge '{self.edge}'")

    def stage(self, schema: StructType) -> StagePlan:
        """Return the plan: files in the store."""
        return StagePlan(schema=arrow_schema(schema), dictionary=False)

    def publisher(self, spark: SparkSession, context: SinkContext) -> Publisher:
        """Return a publisher without work."""
        return _Committed()

    def describe(self) -> Mapping[str, str]:
        """Return kind and name."""
        return {"kind": "edge", "edge": self.edge}


class _Committed:
    """Readers follow the log, so a committed epoch is published."""

    def publish(self, output: EpochOutput) -> PublishReceipt:
        return PublishReceipt(output.epoch, sum(file.rows for file in output.files), replayed=False)

    def close(self) -> None:
        """Do nothing."""
