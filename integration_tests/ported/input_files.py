"""Drawn input: a few files of rows in the order of event time, with late rows and repeated rows."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Sequence

from integration_tests.ported.program import File

Row = dict[str, object]
BEGAN = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
FILES = 2
LATE_S = 90


def stamp(seconds: float) -> str:
    """Return the text of a time, in seconds since `BEGAN`."""
    return (BEGAN + dt.timedelta(seconds=round(seconds))).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def in_time(draw: random.Random, make: Callable[[random.Random, float], Row]) -> list[list[Row]]:
    """Draw the rows of each file. `make` draws a row of a time in seconds.

    Later files have later rows. Some rows are up to `LATE_S` late, and some repeat rows of earlier files. The newest row comes
    last: it alone determines the watermark. The last file has one row, so late that all windows close.
    """
    files: list[list[Row]] = []
    now = 0.0
    for _ in range(FILES):
        now += draw.choice((20, 45, 80))
        rows = [make(draw, now - draw.uniform(0, LATE_S)) for _ in range(draw.randrange(4, 9))]
        seen = [row for file in files for row in file] + rows
        files.append([*rows, *draw.sample(seen, 2), make(draw, now)])
    return [*files, [make(draw, now + 3600)]]


def of_one_input(name: str, make: Callable[[random.Random, float], Row]) -> Callable[[random.Random], Sequence[File]]:
    """Return the function that draws the files of a program with one input."""
    return lambda draw: [{name: rows} for rows in in_time(draw, make)]
