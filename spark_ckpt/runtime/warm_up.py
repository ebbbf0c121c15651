"""Spark's Python workers are started while the program still describes its job: the first batch finds them ready.

The first tasks would wait for the workers' daemon and for what it imports, 2-3 s of a start in which one core has little to do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_ckpt.worker_process import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_warm: set[str] = set()


def warm_up(spark: SparkSession) -> None:
    """Run a task per core in the background, once per application. What goes wrong here goes wrong in the job too."""
    application = str(spark.sparkContext.applicationId)
    if application not in _warm:
        _warm.add(application)
        threading.Thread(target=_run_tasks, args=(spark,), name="ckpt-warm-up", daemon=True).start()


def _run_tasks(spark: SparkSession) -> None:
    try:
        cores = spark.sparkContext.defaultParallelism
        spark.range(0, cores, 1, cores).mapInArrow(_settled, "id long").collect()
    except Exception as error:  # noqa: BLE001 - see above
        _log.debug("not warmed up: %s", error)


def _settled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    settle()
    yield from batches
