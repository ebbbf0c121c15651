"""Reader of Spark's offset log: the barriers in a batch, and the position of every source at its end.

Spark writes the log before a batch runs, so it exists inside `foreachBatch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ckpt.driver.query.control_source import marker_number
from spark_ckpt.driver.query.edge_stream import taken_up_to
from spark_ckpt.errors import EnvironmentUnfit
from spark_ckpt.plan.plan_order import PlanOrder
from spark_ckpt.spark_internals.checkpoint_files import OtherFormat, offsets_path, parse_offsets
from spark_ckpt.store.location import Location


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """End of one micro-batch.

    `sources`: one JSON text per source of the job; None if the source has not been read yet. `markers`: number of
    control markers up to its end. `taken`: number of consumed segments by edge.
    """

    batch: int
    watermark_ms: int
    sources: tuple[str | None, ...]
    markers: int
    taken: Mapping[str, int] = field(default_factory=dict)


def read_batch_offsets(checkpoint: Location, batch: int, order: PlanOrder) -> BatchOffsets:
    """Return the end of micro-batch `batch` of a query with the inputs `order`. Raises `EnvironmentUnfit`."""
    # Spark's file, not its progress: the file exists before the batch runs, and a repeated batch has the same.
    text = checkpoint.read_bytes(offsets_path(batch)).decode()
    try:
        offsets = parse_offsets(text)
    except OtherFormat as error:
        raise EnvironmentUnfit(str(error), hint=error.hint) from error
    markers = marker_number(offsets.lines[order.control])
    taken = {edge: taken_up_to(offsets.lines[number]) for edge, number in order.edges.items()}
    return BatchOffsets(batch, offsets.watermark_ms, tuple(order.of_sources(offsets.lines)), markers, taken)
