"""Declares the Delta connector to the core: its classes, delta-spark's jars, and the session settings for them.

Only `DeltaSink(engine="spark")` and Spark's own readers of Delta need the jars.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from deltalake.exceptions import DeltaError

from spark_ckpt.connector import Connector, PublishedEpoch, SinkContext
from spark_ckpt.errors import SinkInvalid
from spark_ckpt.jars import read_lock
from spark_ckpt.storage_errors import one_line
from spark_ckpt_delta.log import identity_of, open_table, table_exists
from spark_ckpt_delta.marker import ENGINES, application_id, read_marker


def published_in(
    identity: Mapping[str, str], context: SinkContext, storage_options: Mapping[str, str]
) -> PublishedEpoch | None:
    """Return the newest epoch that the table has, of either engine, or None. `identity`: "path", "table id" of the
    recorded endpoint.

    Raises `SinkInvalid` if the table cannot be opened, or is another table.
    """
    table = identity["path"]
    try:
        opened = open_table(table, storage_options) if table_exists(table, storage_options) else None
        markers = [read_marker(opened, application_id(context, each)) for each in ENGINES] if opened else []
    except (DeltaError, OSError) as error:
        raise SinkInvalid(f"{table} cannot be opened: {one_line(error)}", table=table) from error
    # A table that was created again has no marker, and would read as one that lost its rows.
    known = identity.get("table id", "")
    if opened is not None and known and identity_of(table, opened)["table id"] != known:
        raise SinkInvalid(f"{table} is another table than the job wrote to", table=table)
    # The recorded endpoint does not name the sink's engine.
    marker = max((each for each in markers if each is not None), key=lambda each: each.epoch, default=None)
    return None if marker is None else PublishedEpoch(marker.epoch, marker.incarnation, marker.is_of)


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
