"""The columns of Spark's Kafka sink, checked before a job starts, and how they are staged."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from spark_ckpt_kafka.sink import KafkaSink, check_columns

from spark_ckpt.errors import SinkInvalid


def _schema(ddl: str) -> StructType:
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        DataType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        TimestampType,
    )

    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    kinds: dict[str, DataType] = {
        "string": StringType(),
        "binary": BinaryType(),
        "int": IntegerType(),
        "long": LongType(),
        "timestamp": TimestampType(),
        "headers": ArrayType(header),
    }
    fields = [part.split() for part in ddl.split(",")]
    return StructType([StructField(name, kinds[kind]) for name, kind in fields])


@pytest.mark.parametrize(
    "ddl",
    [
        "value string",
        "key binary,value binary",
        "key string,value string,headers headers,topic string,partition int,timestamp timestamp",
    ],
)
def test_the_columns_of_sparks_sink_are_accepted(ddl: str) -> None:
    check_columns(_schema(ddl), "t")


@pytest.mark.parametrize(
    ("ddl", "topic", "says"),
    [
        ("key string", "t", "no column 'value'"),
        ("value long", "t", "Kafka needs string or binary"),
        ("value string,customer string", "t", "no column customer"),
        ("value string,partition long", "t", "Kafka needs int"),
        ("value string", None, "no row names a topic"),
    ],
)
def test_other_columns_are_refused_with_the_expression_that_helps(ddl: str, topic: str | None, says: str) -> None:
    with pytest.raises(SinkInvalid, match=says) as refused:
        check_columns(_schema(ddl), topic)

    assert refused.value.hint


def test_rows_are_staged_as_bytes_and_split_by_key() -> None:
    plan = KafkaSink("b:9092", "t", lanes=4).stage(_schema("key string,value string,partition int"))

    assert plan.schema == pa.schema([("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32())])
    assert (plan.lanes, plan.lane_by, plan.root) == (4, "key", None)


def test_rows_without_a_key_have_one_lane() -> None:
    plan = KafkaSink("b:9092", "t", lanes=4).stage(_schema("value string"))

    assert (plan.lanes, plan.lane_by) == (1, None)


@pytest.mark.parametrize("audit_headers", [False, True])
def test_a_row_is_refused_that_only_the_audit_headers_make_too_large(audit_headers: bool) -> None:
    """The brokers would refuse it after its epoch has been committed."""
    sink = KafkaSink("b:9092", "t", options={"max.request.size": 2000}, audit_headers=audit_headers)
    rules = sink.stage(_schema("value binary")).refuses

    assert rules is not None
    assert (rules(pa.table({"value": [b"x" * 1900]})) is not None) is audit_headers
