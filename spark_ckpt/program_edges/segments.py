"""Rows of an edge in tasks: the files of a partition, verified and in the reader's columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_ckpt.connector import StagedFile
from spark_ckpt.connector_parts.file_stream import FileRun
from spark_ckpt.errors import EpochDamaged, SourceInvalid, StateSchemaChanged
from spark_ckpt.store.location import Location
from spark_ckpt.tasks.rows import ROWS_PER_WRITE, arrow_schema, conform
from spark_ckpt.tasks.worker_process import prepare_worker


@dataclass(frozen=True, slots=True)
class EdgeFile:
    """A file of an epoch of the sender."""

    epoch: int
    staged: StagedFile

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.staged.size_bytes


@dataclass(frozen=True, slots=True)
class SegmentReader:
    """Reads files of `edge` below `location` as rows of `schema`. Spark ships it to tasks."""

    edge: str
    location: Location
    schema: StructType

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition's files. No row is decoded before its file's digest is compared.

        Raises `SourceInvalid` for a missing or damaged file, and for values that do not fit the schema.
        """
        prepare_worker()
        assert isinstance(partition, FileRun)  # noqa: S101 - what the planner returned
        for file in partition.files:
            yield from self._table(file).to_batches(max_chunksize=ROWS_PER_WRITE)

    def _table(self, file: EdgeFile) -> pa.Table:
        try:
            table = self.location.read_committed(file.staged, file.staged.rows, epoch=file.epoch, edge=self.edge)
            return conform(table.replace_schema_metadata(), arrow_schema(self.schema))
        except EpochDamaged as error:
            raise SourceInvalid(
                f"edge {self.edge}: {error.what}",
                hint="bring the file back from a backup of the sender's store, or restore the sender to an epoch before it;"
                " `spark-ckpt verify STORE --deep` checks all of its files",
                **error.context,
            ) from error
        except StateSchemaChanged as error:
            raise SourceInvalid(
                f"edge {self.edge}: {error.what}",
                hint="the sender's columns have other types now: start this job again, it takes them at its start",
                epoch=file.epoch,
            ) from error
