"""Base of the connectors' Python streaming sources over files: a cursor as offset, runs of files as partitions.

`latestOffset` and `partitions` run in one Python process next to the driver, `read` in tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_ckpt.connector import Cursor
from spark_ckpt.connector_parts.read_limits import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from spark_ckpt.spark_internals.python_workers import end_reader

_PARTITION_BYTES = 16 << 20


class SizedFile(Protocol):
    """A file of a batch."""

    @property
    def size(self) -> int:
        """Size in bytes."""


FileT = TypeVar("FileT", bound=SizedFile)


class FileRun(InputPartition, Generic[FileT]):
    """A run of consecutive files that one task reads."""

    def __init__(self, files: Sequence[FileT]) -> None:
        super().__init__(len(files))
        self.files = tuple(files)


class FileStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Base of readers whose offsets are the source's cursors and whose batches are whole files."""

    def __init__(self, initial: Cursor, files_per_batch: int) -> None:
        self._initial_cursor = dict(initial)
        self._files_per_batch = files_per_batch

    def initialOffset(self) -> dict[str, object]:
        """Return the beginning of a fresh query: the cursor that the job gave."""
        return dict(self._initial_cursor)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of files per batch."""
        return ReadMaxFiles(self._files_per_batch)

    def commit(self, end: dict[str, object]) -> None:
        """Do nothing: the reader does not clean up files."""

    def stop(self) -> None:
        """End the reader's process without a traceback if the query has ended first."""
        end_reader()

    def _files_of(self, limit: ReadLimit) -> int:
        return limit.max_files if isinstance(limit, ReadMaxFiles) else self._files_per_batch


def file_runs(files: Sequence[FileT]) -> list[FileRun[FileT]]:
    """Return the partitions of a batch.

    Small neighbours share a task: starting one costs more than reading a small file.
    """
    return [FileRun(run) for run in _runs(files)]


def _runs(files: Sequence[FileT]) -> Iterator[list[FileT]]:
    run: list[FileT] = []
    size = 0
    for file in files:
        if run and size + file.size > _PARTITION_BYTES:
            yield run
            run, size = [], 0
        run.append(file)
        size += file.size
    if run:
        yield run
