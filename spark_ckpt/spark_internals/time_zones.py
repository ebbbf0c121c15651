"""Spark's interpretation of a session's time zone setting. On the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.jvm import jvm_of
from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = (
    SparkName(
        "DateTimeUtils.getZoneId",
        "org.apache.spark.sql.catalyst.util.SparkDateTimeUtils "
        "(sql/api/src/main/scala/org/apache/spark/sql/catalyst/util/SparkDateTimeUtils.scala)",
        "session_zone", "files with local times cannot be read",
    ),
)  # fmt: skip


def session_zone(spark: SparkSession) -> str:
    """Return the session's time zone as an IANA name or an offset such as +05:30. The setting may have any form."""
    zones = jvm_of(spark).org.apache.spark.sql.catalyst.util.DateTimeUtils
    name = str(zones.getZoneId(spark.conf.get("spark.sql.session.timeZone")).normalized().getId())
    # Java's name for UTC is no IANA name.
    return "UTC" if name == "Z" else name
