"""Staged Parquet files as chunks of rows for a producer: one pass, a bounded piece at a time, columns not
rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from spark_ckpt.errors import EpochDamaged
from spark_ckpt.storage_errors import outage, refusal_in, taken_away
from spark_ckpt.wording import counted
from spark_ckpt_kafka.producer import Chunk, Headers

CHUNK_ROWS = 50_000
CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StagedPart:
    """One staged file of a lane: path below the root, and how many rows it must have."""

    path: str
    rows: int


@dataclass(frozen=True)
class StagedRows:
    """A lane's rows of one epoch. `topic` overrides the rows' own; `stamp` goes behind each row's headers."""

    root: str
    storage_options: Mapping[str, str] = field(repr=False)
    parts: Sequence[StagedPart]
    topic: str | None
    stamp: Headers

    @property
    def count(self) -> int:
        """How many rows there are."""
        return sum(part.rows for part in self.parts)

    def row_groups(self) -> Iterator[Iterator[Chunk]]:
        """Chunks by row group, in publishing order. Raises `EpochDamaged` for a missing or different file, a `StoreOutage`
        if the store does not serve it for now."""
        filesystem, base = _open(self.root, self.storage_options)
        for part in self.parts:
            yield from self._file(filesystem, f"{base}{part.path}", part)

    def _file(self, filesystem: pafs.FileSystem, path: str, part: StagedPart) -> Iterator[Iterator[Chunk]]:
        try:
            with filesystem.open_input_file(path) as stream, pq.ParquetFile(stream) as file:
                if file.metadata.num_rows != part.rows:
                    raise _damaged(
                        part,
                        f"it has {counted(file.metadata.num_rows, 'row')}, {counted(part.rows, 'was', 'were')} staged",
                    )
                for group in range(file.metadata.num_row_groups):
                    yield self._row_group(file, group)
        except (OSError, pa.ArrowException) as error:
            if refusal_in(error) is not None or taken_away(local_folder(self.root)):
                raise outage(self.root, error, path=part.path) from error
            raise _damaged(part, str(error)) from error

    def _row_group(self, file: pq.ParquetFile, group: int) -> Iterator[Chunk]:
        for batch in file.iter_batches(batch_size=CHUNK_ROWS, row_groups=[group]):
            for piece in bounded(batch):
                yield self._chunk(piece)

    def _chunk(self, batch: pa.RecordBatch) -> Chunk:
        columns = {name: batch.column(name) for name in batch.schema.names}
        topics = None if self.topic else _list(columns, "topic")
        return Chunk(
            topic=self.topic or "",
            values=_list(columns, "value") or [],
            keys=_list(columns, "key") or [None] * batch.num_rows,
            topics=topics,
            partitions=_list(columns, "partition"),
            timestamps=_milliseconds(columns.get("timestamp")),
            headers=stamped(_headers(columns.get("headers")), self.stamp, batch.num_rows),
        )


def bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of at most about `CHUNK_BYTES`, at least one row each."""
    if batch.num_rows == 0:
        return
    step = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, CHUNK_BYTES))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def stamped(headers: list[Headers | None] | None, stamp: Headers, count: int) -> list[Headers | None] | None:
    """The rows' headers with the stamp behind them; without a stamp, as they are."""
    if not stamp:
        return headers
    return [stamp] * count if headers is None else [(one or []) + stamp for one in headers]


def _list(columns: Mapping[str, pa.Array[Any]], name: str) -> list[Any] | None:
    """A column as Python values, text as bytes; None when it is absent or all null."""
    column = columns.get(name)
    if column is None or (column.null_count == len(column) and name != "value"):
        return None
    if pa.types.is_string(column.type) and name != "topic":
        column = column.cast(pa.binary())
    values: list[Any] = column.to_pylist()
    return values


def _milliseconds(column: pa.Array[Any] | None) -> list[int | None] | None:
    if column is None or column.null_count == len(column):
        return None
    whole = pc.cast(column, pa.timestamp("ms", tz=column.type.tz), safe=False)
    numbers: list[int | None] = whole.cast(pa.int64()).to_pylist()
    return numbers


def _headers(column: pa.Array[Any] | None) -> list[Headers | None] | None:
    if column is None or column.null_count == len(column):
        return None
    return [row and [(one["key"], one["value"]) for one in row] for row in column.to_pylist()]


def local_folder(root: str) -> Path | None:
    """The folder's path if it is on a local file system."""
    return Path(root.removeprefix("file://")) if "://" not in root or root.startswith("file://") else None


def _open(root: str, options: Mapping[str, str]) -> tuple[pafs.FileSystem, str]:
    """(file system, prefix of every path): the local disk, or an object store with deltalake's options."""
    if (folder := local_folder(root)) is not None:
        return pafs.LocalFileSystem(), f"{folder}/"
    from deltalake.fs import DeltaStorageHandler

    return pafs.PyFileSystem(DeltaStorageHandler(root, dict(options))), ""


def _damaged(part: StagedPart, why: str) -> EpochDamaged:
    return EpochDamaged(
        f"staged rows cannot be read: {why}",
        hint="restore the file from a backup of the store; the epoch was decided with it",
        path=part.path,
    )
