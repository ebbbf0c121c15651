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


def cut(stream: Readable, quote: str | None = None, multiline: bool = True, delimiter: str = ",") -> Iterator[Records]:
    """Yield all records of a stream in blocks of some megabytes. Empty lines are no records.

    Without `quote` or `multiline` a record is a line, and a line of blanks and tabs only is none, as in Spark. With
    both, line ends in a quoted field belong to the record (RFC 4180). A line ends with LF or CRLF, and with CR in a file
    whose first line does.

    Raises ValueError for a record of more than 256 MiB.
    """
    rest, line = b"", 1
    returns: bool | None = None
    joining = _Quotes.of(delimiter, quote) if quote and multiline else None
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


def _boundaries(data: bytes, quotes: _Quotes | None, returns: bool) -> tuple[Positions, Positions]:
    array = np.frombuffer(data, np.uint8)
    ends = array == _NEWLINE
    if returns:
        ends[:-1] |= (array[:-1] == _RETURN) & ~ends[1:]  # a newline may follow the last byte
    newlines = np.flatnonzero(ends)
    return newlines, newlines if quotes is None else newlines[~quotes.inside(data, newlines)]


def borders_of(delimiter: str, quote: str) -> Bools:
    """Return for each byte: may it be next to a quote that opens or closes a field?"""
    return np.isin(np.arange(256), [*f"{delimiter}{quote}\r\n".encode()])


def quotes_are_plain(data: bytes, borders: Bools, quote: str) -> bool:
    """Return True if each quote opens or closes a whole field, or is one of two inside of a quoted one.

    `data` begins with a record; a field may still be open at its end.
    """
    found = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(found == ord(quote))
    # Of two quotes inside of a field the first one closes it, and the second opens it again.
    opening, closing = quotes[::2], quotes[1::2]
    begun = borders[found[opening - 1]] | (opening == 0)
    ended = borders[found[np.minimum(closing + 1, len(found) - 1)]] | (closing + 1 == len(found))
    return bool(begun.all() and ended.all())


@dataclass(frozen=True, slots=True)
class _Quotes:
    """Finds the line ends inside of quoted fields."""

    quote: str
    borders: Bools
    field: re.Pattern[bytes]

    @classmethod
    def of(cls, delimiter: str, quote: str) -> _Quotes:
        d, q = re.escape(delimiter), re.escape(quote)
        field = rf"(?:(?<=[{d}\r\n])|\A){q}[^{q}]*+(?:{q}{q}[^{q}]*+)*+{q}?"
        return cls(quote, borders_of(delimiter, quote), re.compile(field.encode()))

    def inside(self, data: bytes, newlines: Positions) -> Bools:
        """Return for each line end: is it inside of a quoted field?"""
        if quotes_are_plain(data, self.borders, self.quote):
            # An odd number of quotes before it: a doubled one counts twice and changes nothing.
            found: Bools = np.cumsum(np.frombuffer(data, np.uint8) == ord(self.quote))[newlines] % 2 == 1
            return found
        # A quote in an unquoted field is text. Field by field, since it would turn the parity of all that follows.
        fields = np.array([match.span() for match in self.field.finditer(data)], np.int64).reshape(-1, 2)
        last = np.searchsorted(fields[:, 0], newlines) - 1
        return (last >= 0) & (newlines < np.append(fields[:, 1], 0)[last])


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
