"""CPU and memory of operating-system sessions (a process and all that it started), ended processes included.

Read from /proc: Spark's Python workers leave the process group, but no process leaves its session unless it asks to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.side_by_side.sampling import Sampling

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CPU_EVERY_S = 0.5
_MEMORY_EVERY = 4
"""Interval of memory samples, in CPU samples: adding up a process's pages takes the kernel milliseconds per GiB."""


@dataclass(frozen=True)
class Process:
    """One line of /proc. Process ids are reused; the pair of id and start time is unique."""

    pid: int
    started: int
    session: int
    cpu_s: float


def processes(sessions: Iterable[int]) -> list[Process]:
    """Living processes of some sessions."""
    wanted = set(sessions)
    found = (_read(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [each for each in found if each is not None and each.session in wanted]


def _read(pid: int) -> Process | None:
    """None if it has ended, even if its parent has not waited for it yet."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return parsed(pid, text)


def parsed(pid: int, stat: str) -> Process | None:
    """Parse a line of proc(5): fields are counted after the name, which may contain anything."""
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return Process(pid, int(fields[19]), int(fields[3]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S)


def memory_mib(found: Iterable[Process]) -> float:
    """Sum of PSS: pages that several processes share count once."""
    return sum(_pss_kib(each.pid) for each in found) / 1024


def _pss_kib(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def status_kib(pid: int | str, field: str) -> int:
    """A field in KiB of proc(5)'s status, such as VmRSS. Raises `OSError` if the process has ended."""
    lines = (_PROC / str(pid) / "status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0])


@dataclass
class Cpu:
    """CPU used up to each moment. The last known use of an ended process remains counted."""

    moments: list[float] = field(default_factory=list)
    used_s: list[float] = field(default_factory=list)
    _last_seen: dict[tuple[int, int], float] = field(default_factory=dict)

    def add(self, moment: float, found: Iterable[Process]) -> None:
        """Add one sample."""
        self._last_seen.update({(each.pid, each.started): each.cpu_s for each in found})
        self.moments.append(moment)
        self.used_s.append(sum(self._last_seen.values()))

    def between(self, start: float, stop: float) -> float:
        """Seconds of CPU, interpolated between samples."""
        before, after = np.interp([start, stop], self.moments, self.used_s)
        return float(after - before)


class Usage(Sampling):
    """A context whose thread samples some sessions."""

    def __init__(self, sessions: Callable[[], Iterable[int]]) -> None:
        self.cpu = Cpu()
        self.largest_mib = 0.0
        self._sessions = sessions
        super().__init__("usage")

    def _sample(self) -> None:
        count = 0
        while not self._ended.wait(_CPU_EVERY_S):
            found = processes(self._sessions())
            self.cpu.add(time.monotonic(), found)
            if count % _MEMORY_EVERY == 0:
                self.largest_mib = max(self.largest_mib, memory_mib(found))
            count += 1
