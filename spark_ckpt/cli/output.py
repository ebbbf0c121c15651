"""Output of commands: JSON, a table on a terminal, or plain aligned text in a pipe."""

from __future__ import annotations

import codecs
import datetime
import json
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.text import Text

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.json_values import plain

if TYPE_CHECKING:
    from spark_ckpt.connector import Json

Row = Sequence[object]

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | str.maketrans(
    {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
)
"""A user's data may have characters that break a table, or that a terminal takes for a command."""
_COMMANDS = {code: shown for code, shown in _CONTROLS.items() if code not in b"\n\t"}
_JSON_COMMANDS = {code: f"\\u{code:04x}" for code in range(127, 160)}
"""Control characters that JSON does not escape."""


class Id(int):
    """A number that names something (an epoch, an incarnation): printed without separators, as the next command
    takes it.
    """


def print_json(value: Json) -> None:
    """Print one JSON document on stdout."""
    print_line(json_for(sys.stdout, value, indent=2))


def print_line(text: str = "") -> None:
    """Print text, without commands for a terminal. Raises `ConfigInvalid` if stdout takes it not, for example on a full
    disk.
    """
    with _writes():
        sys.stdout.write(without_commands(text) + "\n")


def without_commands(text: str) -> str:
    """Return text of some lines with its other control characters escaped: it may quote a user's data."""
    return text.translate(_COMMANDS)


def json_for(stream: TextIO, value: Json, indent: int | None = None) -> str:
    """Return JSON whose characters `stream` can encode."""
    # Looked up, since an encoding has several names.
    is_utf8 = codecs.lookup(stream.encoding or "ascii").name == "utf-8"
    return json.dumps(value, ensure_ascii=not is_utf8, indent=indent, allow_nan=False).translate(_JSON_COMMANDS)


def write_file(path: Path, text: str) -> None:
    """Write a file as a whole: if the disk is full, an older file stays as it is. Raises OSError."""
    if path.exists() and not path.is_file():  # for example /dev/stdout
        path.write_text(text, encoding="utf-8")
        return
    target = path.resolve()  # behind a link, which stays a link
    part = target.with_name(f".{uuid.uuid4().hex}.part")  # in the same folder, where a rename is one step
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def flush() -> None:
    """Write what stdout has buffered, unless the reader of the pipe has ended. Raises `ConfigInvalid`, as `print_line`."""
    with suppress(BrokenPipeError), _writes():
        sys.stdout.flush()


@contextmanager
def _writes() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader has ended (`spark-ckpt list ... | head`), and typer ends the command
        raise
    except OSError as error:
        raise ConfigInvalid(
            f"the output cannot be written: {error.strerror}",
            hint="free space there or write it elsewhere; a command that changes something has already done it",
        ) from error


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one pair a line. Absent values are left out."""
    shown = {name: value for name, value in facts.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        print_line(f"{name.ljust(width)}  {cell(value)}")


def print_table(columns: Sequence[str], rows: Iterable[Row], shown: Callable[[object], str] | None = None) -> None:
    """Print a table with numbers aligned right and nothing cut. On a terminal the heading is bold and long lines wrap.

    `shown` formats values: readable by default, `datum` for a user's data.
    """
    heading, *body = _aligned([cell(name) for name in columns], [list(row) for row in rows], shown or cell)
    if sys.stdout.isatty():
        Console(highlight=False).print(Text(heading, style="bold"), soft_wrap=True)
    else:
        print_line(heading)
    for line in body:
        print_line(line)


def datum(value: object) -> str:
    """Return a value of the user's data in the form of `--key`: digits without separators, none cut."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else cell(value)


def cell(value: object) -> str:
    """Return a value in readable form, on one line."""
    if isinstance(value, Id):
        return str(int(value))
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, list | tuple | dict):
        value = json.dumps(plain(value), ensure_ascii=False)
    return str(value).translate(_CONTROLS)


def size(count: int) -> str:
    """Return bytes with a unit."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}" if unit != "B" else f"{count} B"
        amount /= 1000
    return f"{amount:,.3g} TB"


def seconds(milliseconds: int) -> str:
    """Return a duration in seconds."""
    return f"{milliseconds / 1000:.2f} s"


def utc(milliseconds: int) -> str:
    """Return a point in time (Unix time in ms) in UTC, to the second."""
    try:
        return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    # A row with a wrong time has moved a watermark after the year 9999.
    except (ValueError, OverflowError):
        return f"{milliseconds} ms since 1970"


def iso(milliseconds: int) -> str:
    """Return a point in time (Unix time in ms) for JSON."""
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds")


def _aligned(columns: Sequence[str], rows: Sequence[Row], shown: Callable[[object], str]) -> list[str]:
    texts = [list(columns), *([shown(value) for value in row] for row in rows)]
    widths = [max(len(row[index]) for row in texts) for index in range(len(columns))]
    right = [_numeric(rows, index) for index in range(len(columns))]
    lines = []
    for row in texts:
        padded = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(row, widths, right, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    return lines


def _numeric(rows: Sequence[Row], index: int) -> bool:
    values = [row[index] for row in rows if row[index] is not None]
    return bool(values) and all(isinstance(value, int | float) for value in values)
