"""Ranges of a Parquet file: each is a row group with a footer of its own.

A range can be written before the next one is known, verified by its own digest, and decoded without any other part of
the file. Offsets in its footer count from the begin of the file. So the footer of the whole file, which readers of the
Delta table use, names the same row groups. It follows the last range.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

MAGIC = b"PAR1"
"""First bytes of every Parquet file: the first range begins after them."""
_ZEROS = memoryview(bytes(1 << 20))


def encoded(table: pa.Table, offset: int, compression: str = "zstd") -> tuple[bytes, pq.FileMetaData]:
    """Return the bytes of a range that begins at `offset`, and its part of the file's footer."""
    sink = _Sink(offset)
    stream = pa.PythonFile(sink, mode="w")
    # No dictionaries, see `Location.write_table`.
    writer = pq.ParquetWriter(
        stream, table.schema, compression=compression, use_dictionary=False, write_page_checksum=True
    )
    # Arrow counts offsets from the first byte that it writes: it gets the bytes before the range, and they are dropped.
    for start in range(len(MAGIC), offset, len(_ZEROS)):
        stream.write(_ZEROS[: offset - start])
    # One row group of any size: a range is exactly one.
    writer.write_table(table, row_group_size=max(1, table.num_rows))
    writer.close()
    return sink.content, writer.writer.metadata


def footer(parts: Sequence[pq.FileMetaData]) -> bytes:
    """Return the footer of a file with the ranges of these parts, which are used up."""
    whole, *others = parts
    for part in others:
        whole.append_row_groups(part)
    out = pa.BufferOutputStream()
    whole.write_metadata_file(out)
    # Arrow begins a metadata file with the magic bytes; here they are before the first range.
    return bytes(out.getvalue())[len(MAGIC) :]


def opened(content: bytes, offset: int) -> pq.ParquetFile:
    """Open the range whose `content` begins at `offset`; page checksums are verified when it is read."""
    return pq.ParquetFile(pa.PythonFile(_Placed(content, offset), mode="r"), page_checksum_verification=True)


class _Sink(io.RawIOBase):
    """Keeps what is written from an offset on."""

    def __init__(self, offset: int) -> None:
        self._skipped = offset
        self._kept = io.BytesIO()

    @property
    def content(self) -> bytes:
        return self._kept.getvalue()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        skipped = min(self._skipped, len(view))
        self._skipped -= skipped
        self._kept.write(view[skipped:])
        return len(view)


class _Placed(io.RawIOBase):
    """A file of which only the bytes from an offset on are known; those before are zero."""

    def __init__(self, content: bytes, offset: int) -> None:
        self._content = content
        self._offset = offset
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._offset + len(self._content)}[whence]
        )
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._offset + len(self._content)
        start, last = self._at, end if size < 0 else min(end, self._at + size)
        self._at = max(start, last)
        before = max(0, min(last, self._offset) - start)
        return bytes(before) + self._content[max(0, start - self._offset) : max(0, last - self._offset)]
