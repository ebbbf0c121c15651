"""The processes of a system under measurement: started in sessions of their own, killed completely."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from benchmarks.side_by_side import usage
from benchmarks.side_by_side.environments import Prepared
from benchmarks.systems import Run, System

ROOT = Path(__file__).resolve().parents[2]
_TAIL = 3000
_KILL_TIMEOUT_S = 30.0


class Processes:
    """All processes of one system. Their files are in `folder`, next to their logs."""

    def __init__(self, system: System, prepared: Prepared, run: Run, folder: Path) -> None:
        self._command = [str(prepared.python), "-m", system.module, *run.arguments()]
        self._count = system.processes
        self._folder = folder
        self._variables = variables(prepared, folder)
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start all of them at once."""
        self._running = [self._start(number) for number in range(self._count)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        with self._log(number).open("ab") as log:
            return subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def sessions(self) -> list[int]:
        """Sessions; each has the number of its first process."""
        return [process.pid for process in self._running]

    @property
    def one_has_ended(self) -> bool:
        """True if a process has ended, which none should."""
        return any(process.poll() is not None for process in self._running)

    def kill(self) -> None:
        """Kill all processes of the sessions with SIGKILL, repeatedly, since new ones may start between a look and the signals."""
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while left := usage.processes(self.sessions):
            for each in left:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
            for process in self._running:
                process.poll()
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {[each.pid for each in left]} survive SIGKILL")
            time.sleep(0.01)
        for process in self._running:
            process.wait()
        self._running = []

    def log_tail(self) -> str:
        """The end of each process's log."""
        return "\n".join(f"--- process {number}\n{text}" for number, text in self._tails())

    def _tails(self) -> Iterator[tuple[int, str]]:
        for number in range(self._count):
            log = self._log(number)
            yield number, log.read_text(errors="replace")[-_TAIL:] if log.exists() else ""

    def _log(self, number: int) -> Path:
        return self._folder / f"process-{number}.log"


def variables(prepared: Prepared, folder: Path) -> Mapping[str, str]:
    """Environment variables of a system. Python workers that a JVM starts find the same packages; temporary files are in `folder`
    and are removed with it.
    """
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    paths = [ROOT, ROOT / "connectors", *([prepared.site_packages] if prepared.site_packages else [])]
    return {
        **os.environ,
        "PATH": f"{prepared.python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYSPARK_PYTHON": str(prepared.python),
        "PYSPARK_DRIVER_PYTHON": str(prepared.python),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(temporary),
        "SPARK_LOCAL_DIRS": str(temporary),
        "JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} -Djava.io.tmpdir={temporary}".strip(),
    }
