"""Arrow types of Spark's rows are those that Spark itself gives them."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.spark_internals.arrow_types import arrow_schema_of

PLAIN = [
    t.BooleanType(), t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType(), t.FloatType(), t.DoubleType(),
    t.DecimalType(12, 3), t.StringType(), t.BinaryType(), t.DateType(), t.TimestampType(), t.TimestampNTZType(),
    t.DayTimeIntervalType(), t.TimeType(6), t.NullType(), t.VariantType(),
]  # fmt: skip


def one(kind, nullable=True, metadata=None):
    return t.StructType([t.StructField("c", kind, nullable, metadata)])


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.simpleString())
@pytest.mark.parametrize(
    "around",
    [
        lambda kind: kind,
        lambda kind: t.ArrayType(kind, containsNull=True),
        lambda kind: t.MapType(t.StringType(), kind, valueContainsNull=True),
        lambda kind: t.StructType([t.StructField("in", kind)]),
    ],
    ids=["plain", "array", "map", "struct"],
)
def test_arrow_types_are_sparks_own(kind, around):
    schema = one(around(kind), metadata={"comment": "x"})
    assert arrow_schema_of(schema, "Europe/Berlin").equals(
        to_arrow_schema(schema, timezone="Europe/Berlin"), check_metadata=True
    )


def test_columns_without_nulls_stay_so():
    schema = one(t.ArrayType(t.LongType(), containsNull=False), nullable=False)
    assert arrow_schema_of(schema).equals(to_arrow_schema(schema, timezone="UTC"))


def test_a_type_without_an_arrow_type_is_refused_by_name():
    with pytest.raises(ConfigInvalid, match="interval year to month"):
        arrow_schema_of(one(t.YearMonthIntervalType()))
