"""What this package says of itself to the core: its classes, delta-spark's jars, and how a session gets to know them.

Only `DeltaSink(engine="spark")` and Spark's own readers of Delta need the jars.
"""

from __future__ import annotations

from importlib import resources

from spark_ckpt.connector import Connector
from spark_ckpt.jars import read_lock

CONNECTOR = Connector(
    "delta",
    contract=1,
    sources=("DeltaSource",),
    sinks=("DeltaSink",),
    jars=read_lock(resources.files("spark_ckpt_delta") / "jars.lock.json"),
    settings={
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
)
