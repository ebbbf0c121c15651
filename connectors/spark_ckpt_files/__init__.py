"""Files connector of spark_ckpt: append-only directories of files as a replayable source.

Needs only pip and a JDK, no jars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ckpt.connector import Connector

if TYPE_CHECKING:
    from spark_ckpt_files.source import FilesSource

__all__ = ["CONNECTOR", "FilesSource"]

CONNECTOR = Connector("files", contract=1, sources=("FilesSource",))


def __getattr__(name: str) -> object:
    """Import a public name at first use: a task that reads a file loads nothing of the driver."""
    if name != "FilesSource":
        from spark_ckpt.errors import NameUnknown

        raise NameUnknown.of(__name__, name, __all__)
    from spark_ckpt_files.source import FilesSource

    return FilesSource
