"""Declares the Delta connector to the core: its classes, delta-spark's jars, and the session settings for them.

Only `DeltaSink(engine="spark")` and Spark's own readers of Delta need the jars.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from spark_ckpt.connector import Connector, Published, SinkContext
from spark_ckpt.jars import read_lock


def published_in(
    identity: Mapping[str, str], context: SinkContext, storage_options: Mapping[str, str]
) -> Published | None:
    """Return the newest epoch in the table of this endpoint, of either engine."""
    from spark_ckpt_delta.asking import newest_in

    return newest_in(identity, context, storage_options)


CONNECTOR = Connector(
    "delta",
    contract=1,
    sources=("DeltaSource",),
    sinks=("DeltaSink",),
    jars=read_lock(resources.files("spark_ckpt_delta") / "jars.lock.json"),
    published=published_in,
    settings={
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
)
