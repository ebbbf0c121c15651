"""What a Python worker of Spark does once in its life for this library's tasks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_prepared = False


def prepare_worker() -> None:
    """Take what the imports left behind out of the garbage collector's sight.

    PySpark's daemon collects garbage after every task. With pandas, pyarrow and pydantic imported that walks through
    several hundred thousand objects that live as long as the process: 50-100 ms CPU for each task, measured as half
    of all CPU of the Python workers.
    """
    global _prepared
    if not _prepared:
        _prepared = True
        gc.collect()
        gc.freeze()


def in_prepared_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task that does nothing but start its worker."""
    prepare_worker()
    yield from batches
