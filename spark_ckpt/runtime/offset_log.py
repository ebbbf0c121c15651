"""Reading Spark's own offset log: which batch holds which barrier, and where every source ends there.

`offsets/<batch>` is written before a batch runs, so it exists inside `foreachBatch`: line 1 is a version, line 2 the
batch's metadata, then one line per source in plan order (spark.md, section 4).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_ckpt.errors import EnvironmentUnfit
from spark_ckpt.runtime.control_source import marker_number

if TYPE_CHECKING:
    from spark_ckpt.store.location import Location

_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """Where one micro-batch ends. `sources`: one JSON text per source; None if the source has not been read yet.

    `markers`: how many control markers there were up to its end.
    """

    batch: int
    watermark_ms: int
    sources: tuple[str | None, ...]
    markers: int


def read_batch_offsets(checkpoint: Location, batch: int) -> BatchOffsets:
    """The end of micro-batch `batch`; the control source is the last one."""
    text = checkpoint.read_bytes(f"offsets/{batch}").decode()
    version, metadata, *lines = text.split("\n")
    if version != _VERSION:
        raise EnvironmentUnfit(
            f"Spark's offset log is in format {version!r}",
            hint="unset spark.sql.streaming.queryEvolution.enableSourceEvolution and asyncProgressTrackingEnabled",
        )
    *sources, control = [None if line == "-" else line for line in lines]
    return BatchOffsets(batch, int(json.loads(metadata)["batchWatermarkMs"]), tuple(sources), marker_number(control))
