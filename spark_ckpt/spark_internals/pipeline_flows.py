"""Where a declarative pipeline (Spark 4.1 and later) keeps the checkpoints of its flows, below its storage root.

`_checkpoints/<table>/<flow>/<version>`; the table by all parts of its name, with its catalog and database if it has them. A full
refresh begins the next version, and a run goes on with the newest.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_ckpt.spark_internals.names import SparkName
from spark_ckpt.spark_internals.query_logs import COMMITS, ID_FILE, OFFSETS, SOURCES, STATE

NAMES = (
    SparkName(
        "_checkpoints",
        "org.apache.spark.sql.pipelines.graph.FlowSystemMetadata "
        "(sql/pipelines/src/main/scala/org/apache/spark/sql/pipelines/graph/SystemMetadata.scala)",
        "newest_version", "flows of a declarative pipeline are not found below its storage root",
    ),
)  # fmt: skip

FLOWS = "_checkpoints"
LEVELS_MAX = 8
"""A name has three parts as a rule; catalogs of others may have longer ones."""

_VERSION_MAX = 2**31 - 1
_OF_A_CHECKPOINT = {ID_FILE, OFFSETS, COMMITS, SOURCES, STATE}


def newest_version(folders: Iterable[str]) -> str | None:
    """The version that a run goes on with, of the names in a flow's folder; None if none is a version."""
    numbered = [name for name in folders if _is_version(name)]
    return max(numbered, key=int, default=None)


def is_checkpoint(names: Iterable[str]) -> bool:
    """Whether a folder with a version's name is one, by what it holds: a new one holds nothing, that of a table holds flows."""
    held = {name for name in names if not name.startswith(".")}
    return not held or bool(held & _OF_A_CHECKPOINT)


def _is_version(name: str) -> bool:
    return name.isdecimal() and name.isascii() and len(name) <= 10 and int(name) <= _VERSION_MAX
