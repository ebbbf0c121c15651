"""Offsets of a files source in Spark's log: the end of a batch with the batch's files, so that a replay reads the
same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_ckpt.connector import Json
from spark_ckpt.errors import FormatUnknown, SourceInvalid
from spark_ckpt_files.ledger import files_of, rows_of
from spark_ckpt_files.listing import DataFile

_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Offset:
    """`count` files are consumed, the newest was modified at `newest_ms`. `files` are those of the last batch,
    oldest first.
    """

    count: int = 0
    newest_ms: int = 0
    files: tuple[DataFile, ...] = ()

    def after(self, batch: Sequence[DataFile]) -> Offset:
        """Return the end of a batch of these files. Without a file it is the same offset: Spark compares texts."""
        if not batch:
            return self
        return Offset(self.count + len(batch), max(self.newest_ms, newest_of(batch)), tuple(batch))

    def json(self) -> dict[str, Json]:
        """Return the JSON form, with keys in fixed order."""
        return {
            "format": _FORMAT,
            "count": self.count,
            "newest_ms": self.newest_ms,
            "files": rows_of(self.files),
        }

    @classmethod
    def of(cls, offset: Mapping[str, Json]) -> Offset:
        """Return the offset of a JSON form. Raises `FormatUnknown`, `SourceInvalid`."""
        try:
            if offset["format"] == _FORMAT:
                return cls(int(str(offset["count"])), int(str(offset["newest_ms"])), files_of(offset["files"]))
        except (KeyError, ValueError, TypeError) as error:
            raise SourceInvalid(f"not an offset of a files source: {str(offset)[:200]}") from error
        raise FormatUnknown.of("an offset of a files source", offset["format"], _FORMAT)


def newest_of(files: Sequence[DataFile]) -> int:
    """Return the newest modification time of files consumed now (Unix time in ms); 0 without a file.

    A time in the future counts as now. Otherwise one such file would make all later ones look too old.
    """
    now_ms = time.time_ns() // 1_000_000
    return min(now_ms, max((file.modified_ms for file in files), default=0))
