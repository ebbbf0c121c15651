"""Reader for recorded traces. It ignores an incomplete last line, which a killed process was writing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_ckpt.errors import TraceInvalid
from spark_ckpt.trace.lines import Begun, Handled, Line, TraceCut, line_of
from spark_ckpt.trace.recorder import files_of


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded incarnation.

    - `torn`: its last line was incomplete.
    - `cut`: it continued after its last line.
    """

    name: str
    begun: Begun
    lines: Sequence[Handled]
    torn: bool = False
    cut: bool = False

    @property
    def incarnation(self) -> int:
        """Number of the incarnation."""
        return self.begun.point.incarnation


def read_traces(path: Path) -> list[Recorded]:
    """Return the incarnation of a file, or those of a folder, oldest first. Raises `TraceInvalid`."""
    if not path.exists():
        raise TraceInvalid(f"{path} does not exist", hint="name a file or folder that a job with trace_dir has written")
    files = files_of(path) if path.is_dir() else [path]
    if not files:
        raise TraceInvalid(f"{path} holds no trace", hint="a job writes one there with the setting trace_dir")
    found = [recorded for file in files if (recorded := read_trace(file)) is not None]
    if not found:
        raise TraceInvalid(f"{path} has no complete line", hint="the driver was killed within its first line")
    return sorted(found, key=lambda each: (each.begun.shape.job, each.incarnation))


def read_trace(file: Path) -> Recorded | None:
    """Return the incarnation of a file; None if the driver was killed within the first line. Raises `TraceInvalid`."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise TraceInvalid(f"{file}: {error.strerror}") from None
    return recorded_of(file.name, text)


def recorded_of(name: str, text: bytes) -> Recorded | None:
    """Return an incarnation from the bytes of its file. Raises `TraceInvalid`, which names the line."""
    # A whole line ends with a newline, so the last part is empty or torn.
    *whole, rest = text.split(b"\n")
    lines = list(_lines(name, whole))
    if not lines:
        return None
    begun, *handled = lines
    if not isinstance(begun, Begun):
        raise TraceInvalid(f"{name}, line 1: an incarnation's first line says how it begins")
    cut = bool(handled) and isinstance(handled[-1], TraceCut)
    steps = [line for line in (handled[:-1] if cut else handled) if isinstance(line, Handled)]
    if len(steps) != len(handled) - cut:  # `cut` counts as one line
        raise TraceInvalid(
            f"{name}: the first line records the begin, and only the last may record that the incarnation continued"
        )
    return Recorded(name, begun, steps, torn=bool(rest), cut=cut)


def _lines(name: str, texts: Iterable[bytes]) -> Iterable[Line]:
    for number, text in enumerate(texts, 1):
        try:
            yield line_of(text)
        except TraceInvalid as error:
            raise TraceInvalid(f"{name}, line {number}: {error.what}") from None
