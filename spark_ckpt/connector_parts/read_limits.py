"""Spark's names for limits of a batch of a Python data source.

The import raises `EnvironmentUnfit` on a PySpark without them.
"""

from __future__ import annotations

from spark_ckpt.errors import EnvironmentUnfit
from spark_ckpt.spark_versions import JOBS

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
except ModuleNotFoundError as error:
    from importlib import metadata  # here, since it costs each process that lists a folder 20 ms

    raise EnvironmentUnfit(
        f"PySpark {metadata.version('pyspark')} cannot limit what a batch reads of a Python data source: that came with 4.2",
        hint=f"pip install '{JOBS}'; these versions work",
    ) from error

__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxFiles", "SupportsTriggerAvailableNow"]
