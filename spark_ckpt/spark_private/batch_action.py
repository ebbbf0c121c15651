"""The one action of a micro-batch whose rows nobody wants. On the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ckpt.spark_private.jvm import java_frame
from spark_ckpt.spark_private.names import SparkName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FOLDER = "sql/core/src/main/scala/org/apache/spark/sql/execution"
NAMES = (
    SparkName(
        "LogicalRDD.rdd", f"org.apache.spark.sql.execution.LogicalRDD ({_FOLDER}/ExistingRDD.scala)", "run_tasks",
        "no batch of a job runs",
    ),
)  # fmt: skip


def run_tasks(frame: DataFrame) -> None:
    """Run the tasks of the frame that `foreachBatch` is given. Its plan is Spark's for the whole batch, ready to run: to collect
    the frame would have Spark plan once more, tell of a query of its own, and open a socket for rows.
    """
    java_frame(frame).queryExecution().logical().rdd().count()
