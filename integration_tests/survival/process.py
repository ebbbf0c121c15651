"""A driver as a child process: start, wait, freeze, kill; it always ends with its test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from pyspark.sql import SparkSession

from integration_tests.spark import SMALL_JAVA, SUBMIT_ARGUMENTS
from integration_tests.survival.driver import Events

ROOT = Path(__file__).parents[2]
JVM = f"{SMALL_JAVA} -Xshare:auto"
STALLED_S = 400.0
"""Longest wait: on a machine that is overloaded several times, anything longer hangs."""
PROGRAM = "integration_tests.survival.driver"


class Life:
    """One incarnation of a program: its events."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.events_file = folder / "events.jsonl"
        self.events_file.touch()

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Events of the run so far; an incomplete line is left for the next call."""
        lines = self.events_file.read_text().split("\n")[:-1]
        events = [json.loads(line) for line in lines]
        return [event for event in events if kind in (None, event["event"])]

    def kill(self) -> None:
        """End all its processes."""


class Driver(Life):
    """A program in its own process, with its JVM and all its children. Leaving the context kills the rest."""

    def __init__(
        self, arguments: list[str], folder: Path, environment: Mapping[str, str] | None = None, program: str = PROGRAM
    ) -> None:
        super().__init__(folder)
        command = [sys.executable, "-m", program, *arguments]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--events", str(self.events_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=folder,
                env=_environment(folder) | dict(environment or {}),
            )
        self.started_s = time.monotonic()
        self.started_ticks = started(self.process.pid)

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    # -- its output ------------------------------------------------------------------------------------------------

    def log(self, lines: int = 60) -> str:
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-lines:])

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float = STALLED_S) -> None:
        """Poll until the condition holds. Fails with the end of the log if the driver ends or stalls first."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            over = self.exit_code is not None and not condition()
            assert not over, f"the driver ended with {self.exit_code} before: {what}\n{self.log()}"
            assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}\n{self.log()}"
            time.sleep(0.02)

    def wait_for_events(self, kind: str, count: int) -> None:
        self.wait_for(lambda: len(self.events(kind)) >= count, f"{count} times '{kind}'")

    def wait_for_end(self, timeout_s: float = STALLED_S) -> int:
        """Wait until it ends by itself; return its exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver does not end within {timeout_s} s\n{self.log()}") from None

    def check_ended_well(self, timeout_s: float = STALLED_S) -> None:
        code = self.wait_for_end(timeout_s)
        assert code == 0, f"the driver ended with {code}\n{self.log()}"

    # -- signals ---------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Send SIGKILL to everything it started, as when a machine or container dies."""
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)

    def kill_python(self) -> None:
        """Send SIGKILL to the driver program alone; its JVM and children must notice by themselves."""
        self.process.kill()
        self.process.wait(30)

    def signal(self, number: int) -> None:
        """Send a signal to the program alone, as Kubernetes does."""
        self.process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Send a signal to its whole process group, as a terminal does at Ctrl-C."""
        os.killpg(self.process.pid, number)

    def stop(self) -> None:
        """Freeze everything it started."""
        for pid in self.family():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def family(self) -> list[int]:
        """Every process of its session: the driver, its JVM, Python workers, publisher processes. Process ids are reused: empty if
        another process now has the driver's id."""
        if started(self.process.pid) not in (0, self.started_ticks):
            return []
        return [pid for pid, session, _ in processes() if session == self.process.pid]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()


@dataclass
class Lives:
    """Starts drivers of one job, one after the other. `arguments` are common to all of them."""

    folder: Path
    arguments: list[str]
    drivers: list[Life] = field(default_factory=list)
    program: str = PROGRAM

    def start(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Driver:
        driver = Driver([*self.arguments, *arguments], self.next_folder(), environment, self.program)
        self.drivers.append(driver)
        return driver

    def drain(self, *arguments: str, timeout_s: float = STALLED_S) -> Driver:
        """Run a driver that processes and publishes the present input, and ends without an error."""
        with self.start("--available-now", *arguments) as driver:
            driver.check_ended_well(timeout_s)
        return driver

    def drain_on(self, spark: SparkSession, *arguments: str) -> Life:
        """Like `drain`, on a session of the test's own process, which saves the start of another Java."""
        life = Life(self.next_folder())
        self.drivers.append(life)
        program = import_module(self.program)
        given = [*self.arguments, "--available-now", *arguments, "--events", str(life.events_file)]
        with contextlib.closing(Events(life.events_file)) as events:
            program.run_on(spark, program.parsed(given), events)
        return life

    def end(self) -> None:
        for driver in self.drivers:
            driver.kill()

    def next_folder(self) -> Path:
        """Folder of the next driver."""
        return self.folder / f"life-{len(self.drivers) + 1:02}"


def processes() -> Iterator[tuple[int, int, str]]:
    """(pid, session, state) of every process of this machine that is not a zombie."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    yield int(entry.name), int(fields[3]), fields[0]


def started(pid: int) -> int:
    """Start of a process, in ticks of the machine, since process ids are reused. 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def state_of(pid: int) -> str:
    """The process's state letter; empty if there is none."""
    return next((state for number, _, state in processes() if number == pid), "")


def ancestors(pid: int) -> Iterator[int]:
    """The process, its parent, and so on, while they live."""
    while pid > 1:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = STALLED_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def _environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, sys.path)]))
    temporary = folder / "tmp"
    temporary.mkdir()
    ours = {
        "PYTHONPATH": path,
        "JDK_JAVA_OPTIONS": JVM,
        "TMPDIR": str(temporary),
        "PYSPARK_SUBMIT_ARGS": SUBMIT_ARGUMENTS,
    }
    return {name: value for name, value in os.environ.items() if not name.startswith("SPARK_CKPT_FAIL")} | ours


def is_executor(pid: int) -> bool:
    """True if the process is an executor of Spark."""
    try:
        return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
