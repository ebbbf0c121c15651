"""Rows as bytes: Arrow IPC streams, self-describing and uncompressed (Spark's shuffle compresses; measured
10x the cost).
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

MAX_BLOB_BYTES = 64 << 20
"""A blob is one cell of a binary column: far below Arrow's 2 GiB, and small enough to be a fair unit of
shuffle.
"""


def to_blob(table: pa.Table | pa.RecordBatch) -> bytes:
    """One table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    blob: bytes = sink.getvalue().to_pybytes()
    return blob


def from_blob(blob: bytes | pa.Buffer | memoryview) -> pa.Table:
    """The table of an Arrow IPC stream. The columns are views into `blob`."""
    return pa.ipc.open_stream(blob if isinstance(blob, pa.Buffer) else pa.py_buffer(blob)).read_all()


def joined(blobs: Iterable[bytes]) -> pa.Table | None:
    """The rows of several blobs, one after the other, as one contiguous table; None for no blob."""
    tables = [from_blob(blob) for blob in blobs]
    if not tables:
        return None
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()


def outputs_to_blobs(tables: Iterable[pa.Table]) -> list[bytes]:
    """An operator's output tables as blobs of bounded size, in order; empty tables leave no trace."""
    return [to_blob(part) for table in tables if table.num_rows for part in _parts(table)]


def _parts(table: pa.Table) -> list[pa.Table]:
    pieces = -(-table.nbytes // MAX_BLOB_BYTES) or 1
    step = -(-table.num_rows // pieces)
    return [table.slice(start, step) for start in range(0, table.num_rows, step)]
