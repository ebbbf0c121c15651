"""The watermark that rows are late by: as in Spark, the one of the batch before, which a task cannot ask Spark for.

The driver knows it from the offset log and gives it to the tasks of a batch as a local property of its job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import TaskContext

if TYPE_CHECKING:
    from pyspark import SparkContext

_PROPERTY = "spark_ckpt.late.watermark.ms"


class LateWatermark:
    """The driver's side. `base_ms`: what rows of an incarnation's first batch are late by; `base_watermark_ms`: the
    watermark it starts with. To be called from the query's own thread."""

    def __init__(self, context: SparkContext, base_ms: int, base_watermark_ms: int) -> None:
        self._context = context
        self._late_ms = base_ms
        self._base_watermark_ms = base_watermark_ms

    def begin(self, watermark_ms: int) -> None:
        """A batch with this watermark is about to run."""
        self._context.setLocalProperty(_PROPERTY, str(self._late_ms))
        self._late_ms = max(watermark_ms, self._base_watermark_ms)


def late_watermark_ms() -> int | None:
    """In a task: the batch's, None where no driver said so."""
    task = TaskContext.get()
    told = task.getLocalProperty(_PROPERTY) if task else None
    return None if told is None else int(told)
