"""Registration of `format("outbox")`: Spark looks for a `DefaultSource` in each installed module named `pyspark_...`."""

from contextlib import suppress

from spark_ckpt.errors import EnvironmentUnfit

with suppress(EnvironmentUnfit):  # an error here would hide all other data sources of an older Spark
    from spark_ckpt.outbox.data_source import OutboxDataSource as DefaultSource

__all__ = ["DefaultSource"]
