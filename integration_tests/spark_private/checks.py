"""The checks of names that Spark does not promise, by name, for `test_names_of_this_spark`."""

from __future__ import annotations

from collections.abc import Callable

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from spark_ckpt.spark_internals.jvm import java_session, jvm_of

CHECKS: dict[str, Callable[..., None]] = {}


def of(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the check of these names; its parameters are fixtures."""

    def entered(check: Callable[..., None]) -> Callable[..., None]:
        CHECKS.update(dict.fromkeys(names, check))
        return check

    return entered


def entry(spark: SparkSession, key: str) -> JavaObject:
    java_session(spark).sessionState().conf()  # loads the settings of SQL
    found = jvm_of(spark).org.apache.spark.internal.config.ConfigEntry.findEntry(key)
    assert found is not None, f"Spark knows no setting {key}"
    return found
