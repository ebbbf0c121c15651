"""The user's part of a Python traceback: their own lines, without Spark's, ours, and the insides of installed packages.

Works on the text of a traceback, because of a function that Spark runs by itself there is nothing else.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from spark_ckpt.spark_internals.library_files import is_sparks_file

_FRAME = re.compile(r'  File "(?P<path>.+)", line \d+')
_HEADER = "Traceback (most recent call last):"
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_SHOWN_LINES = 40
_LINE_CHARS = 300

_OURS = re.compile(r"[/\\]spark_ckpt(?:_kafka|_delta|_files)[/\\]|[/\\](?:site|dist)-packages[/\\]spark_ckpt[/\\]")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]|\.(?:pyx|pxi|pxd)$|^<frozen |[/\\]lib[/\\]python3\.\d+[/\\]")
"""`.pyx`: compiled packages name their sources so."""


class _Owner(Enum):
    USER = "user"
    SPARK = "spark"
    OURS = "ours"
    INSTALLED = "installed"


@dataclass(slots=True)
class _Frame:
    """One `File` line and what stands below it. `serves`: whose call led here, for a frame of an installed package."""

    owner: _Owner
    serves: _Owner
    lines: list[str]


@dataclass(slots=True)
class _Section:
    """One exception of a chain: the line that links it to the one before, its frames, what it says."""

    link: str = ""
    frames: list[_Frame] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def shown(self) -> list[_Frame]:
        """The user's frames, and of a run of installed packages' frames that they called the innermost one."""
        users = [frame for frame in self.frames if frame.serves is _Owner.USER]
        return [
            frame
            for at, frame in enumerate(users)
            if frame.owner is _Owner.USER or at + 1 == len(users) or users[at + 1].owner is _Owner.USER
        ]


def user_traceback(error: BaseException) -> str:
    """As Python prints `error` and what led to it, but only the user's frames; empty if there is none."""
    return user_part("".join(traceback.format_exception(error)))


def user_part(text: str) -> str:
    """The same of a traceback's text. Bounded in lines and in their length."""
    sections = list(_sections(text.strip("\n").split("\n")))
    lines: list[str] = []
    for section in [each for each in sections if each.shown] or _of_packages_alone(sections):
        lines += [section.link] if lines and section.link else []
        lines += [line.removeprefix("  ") for frame in section.shown for line in frame.lines]
        lines += [line for line in section.said if line.strip()]
    return "\n".join(line[:_LINE_CHARS] for line in _bounded(lines))


def _sections(lines: Sequence[str]) -> Iterator[_Section]:
    section = _Section()
    for line in lines:
        if line in _LINKS:
            yield section
            section = _Section(link=line)
        elif found := _FRAME.match(line):
            section.frames.append(_frame(found["path"], line, section.frames))
        elif section.frames and not section.said and line.startswith("  "):
            section.frames[-1].lines.append(line)
        elif line != _HEADER and (line or section.said):
            section.said.append(line)
    yield section


def _of_packages_alone(sections: Sequence[_Section]) -> list[_Section]:
    """The function that was called is itself an installed package's: where it raised is all there is to show."""
    alone = [each for each in sections if each.frames and all(frame.owner is _Owner.INSTALLED for frame in each.frames)]
    for section in alone:
        section.frames[-1].serves = _Owner.USER
    return alone if len(alone) == len(sections) else []


def _frame(path: str, line: str, before: Sequence[_Frame]) -> _Frame:
    owner = _owner(path)
    led_by = before[-1].serves if before else _Owner.INSTALLED
    return _Frame(owner, led_by if owner is _Owner.INSTALLED else owner, [line])


def _owner(path: str) -> _Owner:
    if path.startswith(_ROOT) or _OURS.search(path):
        return _Owner.OURS
    if is_sparks_file(path):
        return _Owner.SPARK
    return _Owner.INSTALLED if _INSTALLED.search(path) else _Owner.USER


_ROOT = str(Path(__file__).parents[1]) + os.sep


def _bounded(lines: list[str]) -> list[str]:
    left_out = len(lines) - _SHOWN_LINES
    if left_out <= 0:
        return lines
    half = _SHOWN_LINES // 2
    return [*lines[:half], f"... {left_out} lines ...", *lines[-half:]]
