"""Append-only directories of files as a replayable source of `spark_ckpt`.

Needs only pip and a JDK, no jars.
"""

from spark_ckpt_files.source import FilesSource

__all__ = ["FilesSource"]
