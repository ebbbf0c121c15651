"""A state file that several key groups share, written range by range; it appears when the last one is there."""

from __future__ import annotations

import hashlib
import tempfile
import uuid
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from spark_ckpt.epochs.records import StateFile, StateRange
from spark_ckpt.store import ranges

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from spark_ckpt.store.location import Location

_IN_MEMORY_BYTES = 64 << 20
_BLOCK_BYTES = 8 << 20


class SharedFile:
    """One state file of an operator, in `location`. `number`: the task, or the first key group, for its name.

    Ranges wait in memory, and above 64 MiB in a temporary file of this host.
    """

    def __init__(
        self, location: Location, incarnation: int, epoch: int, number: int, kind: Literal["full", "changes"]
    ) -> None:
        self.path = f"i{incarnation}-e{epoch}-t{number}-{uuid.uuid4().hex}.parquet"
        self._location = location
        self._incarnation = incarnation
        self._epoch = epoch
        self._kind: Literal["full", "changes"] = kind
        self._waiting = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - `finish` closes it
        self._waiting.write(ranges.MAGIC)
        self._parts: list[pq.FileMetaData] = []
        self._ranges: list[StateRange] = []

    def add(self, key_group: int, stored: pa.Table) -> StateRange:
        """Add a key group with its rows in the stored form. Nothing is durable before `finish`."""
        offset = self._waiting.tell()
        # Complete by itself: a restored group reads this range with one request and needs no footer of the file.
        content, part = ranges.encoded(stored, offset)
        self._waiting.write(content)
        self._parts.append(part)
        found = StateRange(key_group, stored.num_rows, offset, len(content), hashlib.sha256(content).hexdigest())
        self._ranges.append(found)
        return found

    def drop(self) -> None:
        """Forget the ranges: no file appears."""
        self._waiting.close()

    def finish(self) -> StateFile:
        """Write the file, which has a range at least; it is durable when this returns. Raises a `StoreOutage`."""
        # Readers of the table need it; a key group reads its own range, with a footer of its own.
        self._waiting.write(ranges.footer(self._parts))
        self._waiting.seek(0)
        # Opened only now: an attempt that fails before its last key group leaves no file in the store.
        with self._waiting, self._location.open_output(self.path) as output:
            while block := self._waiting.read(_BLOCK_BYTES):
                output.write(block)
        return StateFile(
            path=self.path,
            size_bytes=output.tell(),
            epoch=self._epoch,
            incarnation=self._incarnation,
            kind=self._kind,
            ranges=tuple(self._ranges),
            sha256=output.sha256,
        )
