"""Rows as bytes: Arrow IPC streams, which contain their schema.

The streams are uncompressed: Spark's shuffle compresses, and compression here cost ten times as much (measured).
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark_ckpt.errors import ConfigInvalid

MAX_BLOB_BYTES = 64 << 20
"""Largest size of one blob in bytes (64 MiB).

A blob is one cell of a binary column: this is far below Arrow's limit of 2 GiB, and a balanced unit of shuffle.
"""


def to_blob(table: pa.Table | pa.RecordBatch) -> bytes:
    """Return `table` as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    blob: bytes = sink.getvalue().to_pybytes()
    return blob


def from_blob(blob: bytes | pa.Buffer | memoryview) -> pa.Table:
    """Return the table of an Arrow IPC stream. The columns are views into `blob`; nothing is copied."""
    return pa.ipc.open_stream(blob if isinstance(blob, pa.Buffer) else pa.py_buffer(blob)).read_all()


def joined(blobs: Iterable[bytes]) -> pa.Table | None:
    """Concatenate the rows of several blobs, in order, into one contiguous table; None if there is no blob.

    Raises `ConfigInvalid` for rows that Arrow cannot put into one.
    """
    tables = [from_blob(blob) for blob in blobs]
    if not tables:
        return None
    # Contiguous, because operators read columns as single arrays.
    return tables[0] if len(tables) == 1 else _contiguous(pa.concat_tables(tables))


def _contiguous(table: pa.Table) -> pa.Table:
    try:
        whole = table.combine_chunks()
    except pa.ArrowInvalid as error:
        if "offset overflow" not in str(error):
            raise
        raise _too_large() from error
    # Arrow leaves texts in several chunks if their offsets do not fit 32 bits.
    if any(column.num_chunks > 1 for column in whole.columns):
        raise _too_large()
    return whole


def _too_large() -> ConfigInvalid:
    return ConfigInvalid(
        "the rows of one key group in a batch are too large: a column has more than 2 GiB of text or bytes, or than 2**31 elements "
        "of arrays",
        hint="limit a batch by the source's maxOffsetsPerTrigger, maxFilesPerTrigger or maxBytesPerTrigger; or give the operator "
        "more key groups: spark-ckpt rescale",
    )


def outputs_to_blobs(tables: Iterable[pa.Table]) -> list[bytes]:
    """Return an operator's output tables as blobs of at most about `MAX_BLOB_BYTES`, in order.

    Empty tables give no blob.
    """
    return [to_blob(part) for table in tables if table.num_rows for part in _parts(table)]


def _parts(table: pa.Table) -> list[pa.Table]:
    # ceiling division; at least one piece, since a table of null columns has no bytes
    pieces = -(-table.nbytes // MAX_BLOB_BYTES) or 1
    step = -(-table.num_rows // pieces)
    # Without a copy: a stream of a slice has the slice's own bytes only.
    return [table.slice(start, step) for start in range(0, table.num_rows, step)]
