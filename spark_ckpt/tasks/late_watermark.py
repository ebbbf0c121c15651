"""The watermark that decides which rows are late: as in Spark, that of the previous batch.

Spark gives a task only the current watermark. The driver knows the previous one from the offset log. It passes it to a
batch's tasks as a local property of the Spark job.
"""

from __future__ import annotations

from pyspark import SparkContext, TaskContext

_PROPERTY = "spark_ckpt.late.watermark.ms"


class LateWatermark:
    """The driver's side; call it from the query's own thread.

    - `base_ms`: late watermark of an incarnation's first batch, in epoch milliseconds.
    - `base_watermark_ms`: watermark that the incarnation starts with, in epoch milliseconds.
    """

    def __init__(self, context: SparkContext, base_ms: int, base_watermark_ms: int) -> None:
        self._context = context
        self._late_ms = base_ms
        self._base_watermark_ms = base_watermark_ms

    def begin(self, watermark_ms: int) -> None:
        """Set the property for a batch that is about to run with this watermark, in epoch milliseconds."""
        # A property and not a closure: the plan is built once, and this changes with each batch.
        self._context.setLocalProperty(_PROPERTY, str(self._late_ms))
        # for the next batch; a new incarnation's own watermark is below the restored one until it catches up
        self._late_ms = max(watermark_ms, self._base_watermark_ms)


def late_watermark_ms() -> int | None:
    """Return the late watermark of the task's batch in epoch milliseconds; None if the driver set none."""
    task = TaskContext.get()
    told = task.getLocalProperty(_PROPERTY) if task else None
    return None if told is None else int(told)
