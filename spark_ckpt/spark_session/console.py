"""The console of a healthy run: a line per incarnation and epoch, and no warnings about what a job does by design.

Spark warns about each batch that takes longer than the trigger, which a job sets to a tenth of a second; about each
registration of a Python data source; and about job groups that are over when a query stops. None of them is a cause to
act, so these loggers report errors only. Settings of `log4j2.properties` for other loggers stay as they are.

After an error the job's own text is last. Java's stacks are in a file, see `driver_log`.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.loggers import file_of_log, quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONSOLE = "spark_ckpt.console"
"""Logger of the lines for people, see `events.announcer`."""


def tidy(spark: SparkSession) -> None:
    """Quiet those loggers of Spark, and print the lines of `CONSOLE` to stderr unless the program configures logging."""
    quiet(spark)
    own = logging.getLogger(CONSOLE)
    # A program that configures logging gets the records through its own handlers, not twice.
    if own.handlers or logging.getLogger().handlers or logging.getLogger("spark_ckpt").handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    own.addHandler(handler)
    own.setLevel(logging.INFO)
    own.propagate = False
    if path := file_of_log(spark):
        own.info("Spark's log with stacks: %s", path)
