"""One system on one job and one topic, from its first start to the oracle's verdict; it removes all that it created."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp

import pandas as pd
import pyarrow as pa

from benchmarks.nexmark.events import Events
from benchmarks.side_by_side.environments import Prepared
from benchmarks.side_by_side.oracle import Progress, Verdict, judge
from benchmarks.side_by_side.processes import Processes
from benchmarks.side_by_side.timeline import Watch
from benchmarks.side_by_side.topics import Topics
from benchmarks.side_by_side.workloads import Inputs
from benchmarks.systems import Run, System

_POLL_S = 0.1
FIRST_RECORD_TIMEOUT_S = STANDBY_TIMEOUT_S = 120.0


class Failed(Exception):
    """The system produced no numbers; `log` is the end of its log."""

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.log = log


@dataclass(frozen=True)
class Subject:
    """The system, job and topic of a trial. `tells`: its program records batches and epochs. `busy`: other busy processes."""

    system: System
    prepared: Prepared
    job: str
    source: str
    inputs: Inputs | Events
    expected: pa.Array | pd.DataFrame
    interval_ms: int
    tells: bool = False
    busy: int = 0


@dataclass(frozen=True)
class Trial:
    """A system that can be started and killed, and the watch over its target. `standby`: a second process of the same program, for
    systems that have one."""

    subject: Subject
    topics: Topics
    target: str
    processes: Processes
    watch: Watch
    state: Path
    standby: Processes | None = None

    def start(self) -> float:
        """Start; return the moment before."""
        moment = time.monotonic()
        self.processes.start()
        return moment

    def start_standby(self) -> None:
        """Start the standby, if the system has one, and wait until it is warm."""
        is_warm = self.subject.system.has_warm_standby
        if self.standby is not None and is_warm is not None:
            self.standby.start()
            self.wait(lambda: is_warm(str(self.state)), STANDBY_TIMEOUT_S, "the standby is not warm")

    def continue_after_kill(self) -> None:
        """After a kill: start again, unless there is a standby."""
        if self.standby is None:
            self.start()

    def kill(self) -> None:
        """Kill all processes."""
        for processes in filter(None, (self.processes, self.standby)):
            processes.kill()

    def wait(self, until: Callable[[], bool], timeout_s: float, failure: str | None = None) -> bool:
        """Wait; return False after the timeout, or raise `failure`. A process that ends fails the trial."""
        deadline = time.monotonic() + timeout_s
        while not until():
            if self.watch.failure is not None:
                raise self.watch.failure
            for processes in filter(None, (self.processes, self.standby)):
                if processes.one_has_ended:
                    raise Failed("a process ended", processes.log_tail())
            if time.monotonic() > deadline:
                if failure is not None:
                    raise Failed(failure, self.processes.log_tail())
                return False
            time.sleep(_POLL_S)
        return True

    def wait_for_first_record(self) -> float:
        """Wait for the first commit; return its moment."""
        timeout_s = FIRST_RECORD_TIMEOUT_S
        reason = f"no committed record within {timeout_s:.0f} s"
        self.wait(lambda: self.watch.first_moment is not None, timeout_s, reason)
        moment = self.watch.first_moment
        assert moment is not None
        return moment

    def rest(self, seconds: float) -> None:
        """Let the system work for a while."""
        self.wait(lambda: False, seconds)

    @property
    def all_answered(self) -> bool:
        """True if no more output is expected. Always False for systems that leave out inputs."""
        return self.subject.system.every_input and self.watch.total >= len(self.subject.inputs)

    def program_records(self) -> str:
        """Records that the program has written; an incomplete last line is left out."""
        path = records_file(self.state)
        return path.read_text().rpartition("\n")[0] if path.exists() else ""

    def verdict(self) -> tuple[Verdict, Progress]:
        """Verdict of the oracle, after the kill."""
        outputs = self.topics.outputs(self.target)
        subject = self.subject
        return judge(outputs, subject.inputs, subject.expected, every_input=subject.system.every_input)


@contextmanager
def computing(count: int) -> Iterator[None]:
    """Run `count` busy processes until the end."""
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextmanager
def trial(subject: Subject, topics: Topics, folder: Path) -> Iterator[Trial]:
    """Create target, folder and processes, and remove them at the end, even after a failure."""
    work = Path(mkdtemp(prefix=f"{subject.system.name}-", dir=folder))
    state = work / "state"
    state.mkdir()
    target = topics.create("target")
    jars = ":".join(map(str, subject.prepared.jars))
    hook, interval_ms = subject.system.hook, subject.interval_ms
    records = str(records_file(state)) if subject.tells else ""
    run = Run(hook, subject.job, topics.servers, subject.source, target, interval_ms, str(state), jars, records)
    processes = Processes(subject.system, subject.prepared, run, work)
    standby = _standby(subject, run, work / "standby")
    os.sync()  # so that this trial does not pay for earlier pages that are still to be written to disk
    try:
        with computing(subject.busy), Watch(lambda: topics.ends(target)) as watch:
            yield Trial(subject, topics, target, processes, watch, state, standby)
    finally:
        for each in filter(None, (processes, standby)):
            each.kill()
        topics.delete(target)
        shutil.rmtree(work, ignore_errors=True)


def records_file(state: Path) -> Path:
    """The file of a program's records."""
    return state / "records.jsonl"


def _standby(subject: Subject, run: Run, folder: Path) -> Processes | None:
    if subject.system.has_warm_standby is None:
        return None
    folder.mkdir()
    return Processes(subject.system, subject.prepared, run, folder)


def faults(verdict: Verdict) -> dict[str, float]:
    """Faults in the form of a result line."""
    return {name: float(value) for name, value in asdict(verdict).items()}


def some_moment(interval_ms: int, repeat: int) -> float:
    """A delay in seconds, up to one interval: different in each repeat, the same for every system."""
    return random.Random(repeat).uniform(0, interval_ms / 1000)
