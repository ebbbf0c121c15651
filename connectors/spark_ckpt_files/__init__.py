"""Append-only directories of files as a replayable source of `spark_ckpt`.

Needs only pip and a JDK, no jars.
"""

from spark_ckpt.connector import Connector
from spark_ckpt_files.source import FilesSource

__all__ = ["CONNECTOR", "FilesSource"]

CONNECTOR = Connector("files", contract=1, sources=("FilesSource",))
