"""The time up to which a job has read its inputs, as its tasks know it; see `driver/input_clock`.

The driver passes it to a batch's tasks as a local property of the Spark job, so each attempt of a task has the same.
"""

from __future__ import annotations

from pyspark import SparkContext, TaskContext

_PROPERTY = "spark_ckpt.inputs.read.ms"


def set_inputs_read_ms(context: SparkContext, read_ms: int) -> None:
    """Set the time for the batch that is about to run, in epoch milliseconds. Call it on the query's own thread."""
    context.setLocalProperty(_PROPERTY, str(read_ms))


def inputs_read_ms() -> int | None:
    """Return the time of the task's batch in epoch milliseconds; None if the driver set none."""
    task = TaskContext.get()
    found = task.getLocalProperty(_PROPERTY) if task else None
    return None if found is None else int(found)
