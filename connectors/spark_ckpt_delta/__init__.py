"""Delta tables as a source and a sink of `spark_ckpt`."""

from spark_ckpt_delta.orphans import find_orphans, remove_orphans
from spark_ckpt_delta.sink import DeltaSink
from spark_ckpt_delta.source import DeltaSource

__all__ = ["DeltaSink", "DeltaSource", "find_orphans", "remove_orphans"]
