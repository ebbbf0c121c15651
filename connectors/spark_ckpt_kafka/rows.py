"""Turns staged Parquet files into chunks of rows for a producer: verified, then decoded column by column in bounded
pieces.

`verified` reads every file to its end and compares it with the committed manifest; only then can rows be decoded. The
bytes stay in memory up to a limit. Larger files are read again, each block against the checksum of the first reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from spark_ckpt.content import Verified, check_size, damaged, verified
from spark_ckpt.errors import CkptError, EpochDamaged, RowsRefused
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.place import local_path
from spark_ckpt.storage_errors import outage, taken_away
from spark_ckpt.wording import counted
from spark_ckpt_kafka.producer import Progress, TransactionalProducer
from spark_ckpt_kafka.record_batches import Chunk
from spark_ckpt_kafka.record_rules import Headers, audit_stamp

CHUNK_ROWS = 50_000
CHUNK_BYTES = 8 * 1024 * 1024
KEPT_BYTES = 16 * 1024 * 1024
"""Bytes of verified files that stay in memory for the decoder."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StagedPart:
    """One staged file of a shard: path below the root, and its expected content. An empty digest is unknown."""

    path: str
    rows: int
    size_bytes: int
    sha256: str = ""


@dataclass(frozen=True)
class StagedRows:
    """Rows of one epoch and shard. `topic` overrides the rows' own; `stamp` is appended to the headers of each row.

    `where`: context of errors besides the file (epoch, sink, lane).
    """

    root: str
    storage_options: Mapping[str, str] = field(repr=False)
    parts: Sequence[StagedPart]
    topic: str | None
    stamp: Headers
    where: Mapping[str, object] = field(default_factory=dict)

    def verified(self, progress: Callable[[], None] = lambda: None) -> VerifiedRows:
        """Read and compare every file. Raises `EpochDamaged`, or a `StoreOutage` while the store does not serve a
        file.
        """
        filesystem, base = _open(self.root, self.storage_options)
        room, contents = KEPT_BYTES, []
        for part in self.parts:
            # Files that fit into the remaining memory are decoded from it; others are read again.
            # Decoding from the verified bytes saves the second reading, and a file that changes after the check
            # cannot get into the topic.
            keep = part.size_bytes <= room
            room -= part.size_bytes if keep else 0
            contents.append(self._content(filesystem, f"{base}{part.path}", part, keep, progress))
        return VerifiedRows(self, contents)

    def _content(
        self, filesystem: pafs.FileSystem, path: str, part: StagedPart, keep: bool, progress: Callable[[], None]
    ) -> Verified:
        try:
            with filesystem.open_input_file(path) as stream:
                check_size(part, stream.size(), **self.where, root=self.root)  # a larger file must not fill the memory
                return verified(part, stream, {**self.where, "root": self.root}, keep=keep, progress=progress)
        except OSError as error:
            raise self.unreadable(part, error) from error

    def unreadable(self, part: StagedPart, error: OSError) -> CkptError:
        """Return the error for a file that cannot be read: damage if the file is missing, else an outage of the
        store.
        """
        # A folder that is not mounted lacks all files. That is an outage: as damage it would send the operator to a
        # restore.
        if isinstance(error, FileNotFoundError) and not taken_away(local_path(self.root)):
            return self.damaged(part, "is missing")
        return outage(self.root, error, path=part.path)

    def damaged(self, part: StagedPart, was: str) -> EpochDamaged:
        """Return the error for one damaged file."""
        return damaged(part.path, was, **self.where, root=self.root, expected=counted(part.rows, "row"))


@dataclass(frozen=True)
class VerifiedRows:
    """Rows whose files match the committed manifest."""

    rows: StagedRows
    contents: Sequence[Verified] = field(repr=False)

    def row_groups(self) -> Iterator[Iterator[Chunk]]:
        """Yield the chunks of each row group, in publishing order.

        Raises `EpochDamaged` for two kinds of files: one of unknown digest that contradicts its footer, and a large one
        that changed since it was verified.
        """
        for part, batches in self._batches():
            yield (chunk for batch in batches for chunk in self._decoded(part, partial(self._chunks, batch)))

    def tables(self) -> Iterator[tuple[StagedPart, int, pa.Table]]:
        """Yield each file's rows in bounded pieces, with the number of the first row. Raises like `row_groups`."""
        at = ("", 0)
        for part, batches in self._batches():
            # The row groups of a file are counted on; another file begins at 0.
            first = at[1] if at[0] == part.path else 0
            for batch in batches:
                yield part, first, pa.Table.from_batches([batch])
                first += batch.num_rows
            at = (part.path, first)

    def _batches(self) -> Iterator[tuple[StagedPart, Iterator[pa.RecordBatch]]]:
        """Yield the batches of each row group; read them before the next group."""
        filesystem, base = _open(self.rows.root, self.rows.storage_options)
        for part, content in zip(self.rows.parts, self.contents, strict=True):
            source = self._opened(part, content, partial(filesystem.open_input_file, f"{base}{part.path}"))
            with source, self._decoded(part, partial(pq.ParquetFile, source)) as file:
                # A file without a digest can be a whole Parquet file of another content. Its footer is the only
                # witness then.
                if file.metadata.num_rows != part.rows:
                    raise self.rows.damaged(
                        part,
                        f"has {counted(file.metadata.num_rows, 'row')}, {counted(part.rows, 'was', 'were')} staged",
                    )
                for group in range(file.metadata.num_row_groups):
                    yield part, self._row_group(file, group, part)

    def _opened(self, part: StagedPart, content: Verified, reopen: Callable[[], pa.NativeFile]) -> pa.NativeFile:
        try:
            return content.source(reopen)
        except OSError as error:
            raise self.rows.unreadable(part, error) from error

    def _row_group(self, file: pq.ParquetFile, group: int, part: StagedPart) -> Iterator[pa.RecordBatch]:
        left = self._decoded(part, lambda: file.metadata.row_group(group).num_rows)
        batches = self._decoded(part, lambda: file.iter_batches(batch_size=CHUNK_ROWS, row_groups=[group]))
        while (batch := self._decoded(part, lambda: next(batches, None))) is not None:
            left -= batch.num_rows
            # `batch_size` bounds the rows, and rows may be large.
            yield from bounded(batch)
        if left:
            raise self.rows.damaged(part, f"lacks {counted(left, 'row')} of row group {group}")

    def _decoded(self, part: StagedPart, decode: Callable[[], T]) -> T:
        try:
            return decode()
        # The decoder raises arbitrary exceptions for bytes that are not Parquet.
        except CkptError:
            raise
        except Exception as error:
            raise self.rows.damaged(part, f"cannot be decoded: {type(error).__name__}: {error}") from error

    def _chunks(self, batch: pa.RecordBatch) -> list[Chunk]:
        by_topic = [(self.rows.topic, batch)] if self.rows.topic else _by_topic(batch)
        return [Chunk(topic, rows, self.rows.stamp) for topic, rows in by_topic]


@dataclass(frozen=True)
class ShardRows:
    """Rows of one shard of a sink.

    - `topic`: topic of every row; None if each row names its own.
    - `stamped`: name of the shard for audit headers; None for no headers.
    - `check_topics`: raises if a topic does not exist. A marker or a row for a missing topic would block.
    """

    sink: str
    lane: int
    topic: str | None
    stamped: str | None
    check_topics: Callable[[set[str]], None]

    def verified(
        self,
        epoch: int,
        root: str,
        storage_options: Mapping[str, str],
        parts: Sequence[StagedPart],
        progress: Progress,
    ) -> VerifiedRows:
        """Return the rows of the files after comparing every byte. Raises `EpochDamaged` or a `StoreOutage`."""
        where = {"epoch": epoch, "sink": self.sink, "lane": self.lane}
        return StagedRows(root, storage_options, parts, self.topic, self._stamp(epoch), where).verified(progress)

    def send(self, producer: TransactionalProducer, rows: VerifiedRows) -> None:
        """Send the rows in order. Raises `RowsRefused` for a row without a topic."""
        known: set[str] = set()
        for row_group in rows.row_groups():
            for chunk in row_group:
                # Once for each topic of a publish: a look costs a round trip, and rows of a topic are in many chunks.
                if not self.topic and chunk.topic not in known:
                    self.check_topics({chunk.topic})
                    known.add(chunk.topic)
                producer.send(chunk)
            hit(Failpoint.MID_SEND)

    def _stamp(self, epoch: int) -> Headers:
        return () if self.stamped is None else audit_stamp(self.stamped, epoch)


def bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of at most about `CHUNK_BYTES`, of at least one row each."""
    if batch.num_rows == 0:
        return
    step = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, CHUNK_BYTES))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = batch.column("topic") if "topic" in batch.schema.names else pa.nulls(batch.num_rows, pa.string())
    if topics.null_count:
        raise RowsRefused(
            "a row has no topic", hint="give KafkaSink(topic=...), or fill the column 'topic' in every row"
        )
    for name in pc.unique(topics).to_pylist():
        yield name, batch.filter(pc.equal(topics, name))


def _open(root: str, options: Mapping[str, str]) -> tuple[pafs.FileSystem, str]:
    """Return (file system, prefix of every path): the local disk, or an object store with deltalake's options."""
    if (folder := local_path(root)) is not None:
        return pafs.LocalFileSystem(), f"{folder}/"
    from deltalake.fs import DeltaStorageHandler

    return pafs.PyFileSystem(DeltaStorageHandler(root, dict(options))), ""
