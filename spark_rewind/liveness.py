"""Detection of running queries by changes in their files.

A query between two batches leaves no trace, so this detects half of the cases. Fences detect the other half.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_ckpt.errors import RewindQueryRuns
from spark_rewind.reading import typed_errors


@dataclass(frozen=True, slots=True)
class Seen:
    """A folder's files at one moment. `newest`: file that was written last, at `newest_ns` (nanoseconds since 1970)."""

    files: int
    newest_ns: int
    newest: str


def seen(folder: Path) -> Seen:
    """Return the files of a folder and all folders below it."""
    found = Seen(0, 0, "")
    count = 0
    with typed_errors(folder):
        for root, _, listed in os.walk(folder):
            for name in listed:
                path = Path(root, name)
                try:
                    at_ns = path.stat().st_mtime_ns
                # a running query deletes old files meanwhile
                except FileNotFoundError:
                    continue
                count += 1
                if at_ns > found.newest_ns:
                    found = Seen(0, at_ns, str(path))
    return Seen(count, found.newest_ns, found.newest)


def watch(queries: Mapping[str, Iterable[Path]], wait: Callable[[], None], now_ns: int) -> list[str]:
    """Compare the files of queries before and after a wait.

    `queries`: folders of each query. Return one sentence per query with the age of its newest file. Raises
    `RewindQueryRuns` for a query whose files changed.
    """
    before = {name: [seen(folder) for folder in folders] for name, folders in queries.items()}
    wait()
    for name, folders in queries.items():
        for was, is_now in zip(before[name], map(seen, folders), strict=True):
            if was != is_now:
                what = f"{name} is running: {is_now.newest} was written while it was watched"
                raise RewindQueryRuns(what, hint="stop the query, plan again, and apply that plan; nothing was changed")
    return [_quiet(name, max((each.newest_ns for each in found), default=0), now_ns) for name, found in before.items()]


def _quiet(name: str, newest_ns: int, now_ns: int) -> str:
    quiet_s = max(now_ns - newest_ns, 0) // 1_000_000_000
    return f"{name}: its newest file is {quiet_s} s old"
