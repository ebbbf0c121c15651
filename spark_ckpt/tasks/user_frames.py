"""The user's part of a Python traceback: without frames of Spark, this library, and inside installed packages.

It works on the text of a traceback, since Spark provides nothing else for a function that it runs itself.
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
# Python's lines between two exceptions of a chain.
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_SHOWN_LINES = 40
_LINE_CHARS = 300

_OURS = re.compile(r"[/\\]spark_ckpt(?:_kafka|_delta|_files)[/\\]|[/\\](?:site|dist)-packages[/\\]spark_ckpt[/\\]")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]|\.(?:pyx|pxi|pxd)$|^<frozen |[/\\]lib[/\\]python3\.\d+[/\\]")
"""Installed packages and Python's own library. Compiled packages name their sources `.pyx`."""


class _Owner(Enum):
    USER = "user"
    SPARK = "spark"
    OURS = "ours"
    INSTALLED = "installed"


@dataclass(slots=True)
class _Frame:
    """One `File` line and the lines below it.

    `serves` is the owner of the call that led to a frame of an installed package.
    """

    owner: _Owner
    serves: _Owner
    lines: list[str]


@dataclass(slots=True)
class _Section:
    """One exception of a chain: the line that links it to the previous one, its frames, its message."""

    link: str = ""
    frames: list[_Frame] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def shown(self) -> list[_Frame]:
        """The user's frames, and the innermost frame of each run of installed packages' frames that they called."""
        users = [frame for frame in self.frames if frame.serves is _Owner.USER]
        return [
            frame
            for at, frame in enumerate(users)
            if frame.owner is _Owner.USER or at + 1 == len(users) or users[at + 1].owner is _Owner.USER
        ]


def user_traceback(error: BaseException) -> str:
    """Return the traceback of `error` and its causes with the user's frames only; empty if there are none."""
    return user_part("".join(traceback.format_exception(error)))


def user_part(text: str) -> str:
    """Return the same for a traceback's text, bounded in lines and in line length."""
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
        # A message may be indented like code, so lines after its first one are part of it.
        elif section.frames and not section.said and line.startswith("  "):
            section.frames[-1].lines.append(line)
        elif line != _HEADER and (line or section.said):
            section.said.append(line)
    yield section


def _of_packages_alone(sections: Sequence[_Section]) -> list[_Section]:
    """Return the sections to show if the called function itself belongs to an installed package: the frame that raised."""
    alone = [each for each in sections if each.frames and all(frame.owner is _Owner.INSTALLED for frame in each.frames)]
    for section in alone:
        section.frames[-1].serves = _Owner.USER
    return alone if len(alone) == len(sections) else []


def _frame(path: str, line: str, before: Sequence[_Frame]) -> _Frame:
    owner = _owner(path)
    # a package's frame belongs to its caller: the user, Spark or this library
    led_by = before[-1].serves if before else _Owner.INSTALLED
    return _Frame(owner, led_by if owner is _Owner.INSTALLED else owner, [line])


def _owner(path: str) -> _Owner:
    if path.startswith(_ROOT) or _OURS.search(path):
        return _Owner.OURS
    if is_sparks_file(path):
        return _Owner.SPARK
    return _Owner.INSTALLED if _INSTALLED.search(path) else _Owner.USER


# Also where the package runs from its sources, and no folder of its path is called site-packages.
_ROOT = str(Path(__file__).parents[1]) + os.sep


def _bounded(lines: list[str]) -> list[str]:
    left_out = len(lines) - _SHOWN_LINES
    if left_out <= 0:
        return lines
    half = _SHOWN_LINES // 2
    # The begin and the end: the call is at one of them, the exception's message at the other.
    return [*lines[:half], f"... {left_out} lines ...", *lines[-half:]]
