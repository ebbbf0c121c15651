"""Checkpoint folders of a declarative pipeline's flows (Spark 4.1 and later), below its storage root.

The path is `_checkpoints/<table>/<flow>/<version>`. The table is all parts of its name, with catalog and database if it
has them. A full refresh begins the next version, and a run continues with the newest.
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
"""Largest number of name parts. A name usually has three; third-party catalogs may have longer ones."""

_VERSION_MAX = 2**31 - 1  # Spark reads it as a Scala Int
_OF_A_CHECKPOINT = {ID_FILE, OFFSETS, COMMITS, SOURCES, STATE}


def newest_version(folders: Iterable[str]) -> str | None:
    """Return the version that a run continues with, from the names in a flow's folder; None if no name is a version."""
    numbered = [name for name in folders if _is_version(name)]
    return max(numbered, key=int, default=None)


def is_checkpoint(names: Iterable[str]) -> bool:
    """Return True if a folder with a version's name is a checkpoint, by its content.

    A new checkpoint is empty; the folder of a table contains flows.
    """
    held = {name for name in names if not name.startswith(".")}
    return not held or bool(held & _OF_A_CHECKPOINT)


def _is_version(name: str) -> bool:
    return name.isdecimal() and name.isascii() and len(name) <= 10 and int(name) <= _VERSION_MAX
