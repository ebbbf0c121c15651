"""How much of a Python data source a batch reads, in Spark's names; or why there is no such thing here."""

from __future__ import annotations

from importlib import metadata

from spark_ckpt.errors import EnvironmentUnfit

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
except ModuleNotFoundError as error:
    raise EnvironmentUnfit(
        f"PySpark {metadata.version('pyspark')} cannot limit what a batch reads of a Python data source: that came with 4.2",
        hint="pip install 'pyspark>=4.2.0,<4.3'; these versions work",
    ) from error

__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxFiles", "SupportsTriggerAvailableNow"]
