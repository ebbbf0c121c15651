"""Cuts a text file into records without parsing it: start, end and line of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_ckpt.content import Readable

BLOCK_BYTES = 4 << 20
_RECORD_BYTES_MAX = 256 << 20
_NEWLINE, _RETURN, _BLANK = 10, 13, 32
_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Positions = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records of one file.

    `starts`, `ends`: byte positions in `data`, without line ends. `lines`: line numbers, from 1.
    """

    data: bytes
    starts: Positions
    ends: Positions
    lines: Positions

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, first: int, last: int) -> Records:
        """Return records first..last-1, over the same bytes."""
        return Records(self.data, self.starts[first:last], self.ends[first:last], self.lines[first:last])

    def content(self) -> bytes:
        """Return the bytes of all records, including blank lines between them."""
        return self.data[int(self.starts[0]) : int(self.ends[-1])]

    def text(self, index: int) -> str:
        """Return one record as text, for an error message or a side table."""
        raw = self.data[int(self.starts[index]) : int(self.ends[index])]
        return raw.decode("utf-8", "replace").rstrip("\r")


def cut(stream: Readable, quote: str | None = None, multiline: bool = True) -> Iterator[Records]:
    """Yield all records of a stream in blocks of some megabytes. Empty lines are no records.

    Without `quote` or `multiline` a record is a line, and a line of blanks and tabs only is none, as in Spark. With
    both, line ends between two quotes belong to the record (RFC 4180; a doubled quote keeps the parity). A line ends
    with LF or CRLF, and with CR in a file whose first line does.

    Raises ValueError for a record of more than 256 MiB.
    """
    rest, line = b"", 1
    returns: bool | None = None
    joining = quote if multiline else None
    while block := stream.read(BLOCK_BYTES):
        if not rest and line == 1:
            block = block.removeprefix(_BYTE_ORDER_MARK)
        data = rest + block
        # Decided once for the file: later a CR may be a part of a field.
        returns = _ends_with_return(data, quote) if returns is None else returns
        newlines, boundaries = _boundaries(data, joining, bool(returns))
        if len(boundaries) == 0:
            rest = _bounded(data)
            continue
        end = int(boundaries[-1]) + 1
        records = _records(data[:end], newlines, boundaries, line, blanks=joining is not None)
        if len(records):
            yield records
        # All line ends count, also those inside quotes: lines are numbered as an editor does.
        line += int(np.searchsorted(newlines, end))
        rest = data[end:]
    # The last line may have no end, and after an open quote everything that is left is one record.
    if rest:
        newlines, _ = _boundaries(rest, joining, bool(returns))
        records = _records(rest, newlines, np.array([len(rest)]), line, blanks=joining is not None)
        if len(records):
            yield records


def _ends_with_return(data: bytes, quote: str | None) -> bool | None:
    """Return True if the first line ends with CR alone; None if its end, or the byte after it, is not read yet."""
    quotes = quote.encode() if quote else None
    inside, looked_at = False, 0
    for found in _LINE_END.finditer(data):
        if quotes:
            inside ^= data.count(quotes, looked_at, found.start()) % 2 == 1
            looked_at = found.start()
        if not inside:
            return found[0] == b"\r" if found[0] != b"\r" or found.end() < len(data) else None
    return None


def _boundaries(data: bytes, quote: str | None, returns: bool) -> tuple[Positions, Positions]:
    array = np.frombuffer(data, np.uint8)
    ends = array == _NEWLINE
    if returns:
        ends[:-1] |= (array[:-1] == _RETURN) & ~ends[1:]  # a newline may follow the last byte
    newlines = np.flatnonzero(ends)
    if quote is None:
        return newlines, newlines
    # An odd number of quotes before a line end means that it is inside a field. A doubled quote counts twice and
    # changes nothing.
    inside = np.cumsum(array == ord(quote))[newlines] % 2
    return newlines, newlines[inside == 0]


def _records(data: bytes, newlines: Positions, boundaries: Positions, line: int, *, blanks: bool) -> Records:
    starts = np.concatenate([[0], boundaries[:-1] + 1])
    lines = line + np.searchsorted(newlines, starts)
    array = np.frombuffer(data, np.uint8)
    length = boundaries - starts
    only_return = (length == 1) & (array[np.minimum(starts, len(array) - 1)] == _RETURN)
    # A line keeps the CR of a CRLF: a blank one has one byte.
    kept = (length > 0) & ~only_return
    if not blanks:
        data, kept = _without_blanks(data, starts, boundaries, kept)
    return Records(data, starts[kept], boundaries[kept], lines[kept])


def _without_blanks(data: bytes, starts: Positions, ends: Positions, kept: Bools) -> tuple[bytes, Bools]:
    """Return the data with empty lines in place of those that have blanks only, and `kept` without them."""
    array = np.frombuffer(data, np.uint8)
    # Few lines begin with a blank: the usual block is not looked at whole.
    if not np.any(array[starts[kept]] <= _BLANK):
        return data, kept
    blank = [
        at
        for at in np.flatnonzero(kept & (np.maximum.reduceat(array, starts) <= _BLANK))
        if data[starts[at] : ends[at]].isspace()
    ]
    if not blank:
        return data, kept
    array, kept = array.copy(), kept.copy()
    kept[blank] = False
    for at in blank:
        array[starts[at] : ends[at]] = _NEWLINE
    return array.tobytes(), kept


def _bounded(data: bytes) -> bytes:
    if len(data) > _RECORD_BYTES_MAX:
        raise ValueError(f"a record is longer than {_RECORD_BYTES_MAX >> 20} MiB; a quote may never be closed")
    return data
