"""One system on one job and one topic, from its first start to the oracle's verdict; nothing is left behind."""

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
    """The system brought no numbers. The log's end belongs to it."""

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.log = log


@dataclass(frozen=True)
class Subject:
    """What is tried. `tells`: its program writes down what it does. `busy`: other processes that compute."""

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
    """A system that can be started and killed, and the watch over its target. `standby`: the same program once more, for systems
    that have one."""

    subject: Subject
    topics: Topics
    target: str
    processes: Processes
    watch: Watch
    state: Path
    standby: Processes | None = None

    def start(self) -> float:
        """The moment before."""
        moment = time.monotonic()
        self.processes.start()
        return moment

    def start_standby(self) -> None:
        """If the system has one: start it, until it is warm."""
        is_warm = self.subject.system.has_warm_standby
        if self.standby is not None and is_warm is not None:
            self.standby.start()
            self.wait(lambda: is_warm(str(self.state)), STANDBY_TIMEOUT_S, "the standby is not warm")

    def go_on(self) -> None:
        """After a kill: start again, unless a standby is there."""
        if self.standby is None:
            self.start()

    def kill(self) -> None:
        """All of it."""
        for processes in filter(None, (self.processes, self.standby)):
            processes.kill()

    def wait(self, until: Callable[[], bool], timeout_s: float, failure: str | None = None) -> bool:
        """Whether it came true in time; `failure` says what it means if not. A process that ends ends the trial."""
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
        """The moment of its commit."""
        timeout_s = FIRST_RECORD_TIMEOUT_S
        reason = f"no committed record within {timeout_s:.0f} s"
        self.wait(lambda: self.watch.first_moment is not None, timeout_s, reason)
        moment = self.watch.first_moment
        assert moment is not None
        return moment

    def rest(self, seconds: float) -> None:
        """Let it work."""
        self.wait(lambda: False, seconds)

    @property
    def all_answered(self) -> bool:
        """No more to come. Systems that leave inputs out cannot tell."""
        return self.subject.system.every_input and self.watch.total >= len(self.subject.inputs)

    def told(self) -> str:
        """What the program has written down, its last line whole or left out."""
        path = told_in(self.state)
        return path.read_text().rpartition("\n")[0] if path.exists() else ""

    def verdict(self) -> tuple[Verdict, Progress]:
        """The oracle's, after the kill."""
        outputs = self.topics.outputs(self.target)
        subject = self.subject
        return judge(outputs, subject.inputs, subject.expected, every_input=subject.system.every_input)


@contextmanager
def computing(count: int) -> Iterator[None]:
    """So many processes that compute until the end."""
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextmanager
def trial(subject: Subject, topics: Topics, folder: Path) -> Iterator[Trial]:
    """Target, folder and processes, gone afterwards whatever happened."""
    work = Path(mkdtemp(prefix=f"{subject.system.name}-", dir=folder))
    state = work / "state"
    state.mkdir()
    target = topics.create("target")
    jars = ":".join(map(str, subject.prepared.jars))
    hook, interval_ms = subject.system.hook, subject.interval_ms
    told = str(told_in(state)) if subject.tells else ""
    run = Run(hook, subject.job, topics.servers, subject.source, target, interval_ms, str(state), jars, told)
    processes = Processes(subject.system, subject.prepared, run, work)
    standby = _standby(subject, run, work / "standby")
    os.sync()  # what filling the topic, or the trial before, left to be written would be written at this one's expense
    try:
        with computing(subject.busy), Watch(lambda: topics.ends(target)) as watch:
            yield Trial(subject, topics, target, processes, watch, state, standby)
    finally:
        for each in filter(None, (processes, standby)):
            each.kill()
        topics.delete(target)
        shutil.rmtree(work, ignore_errors=True)


def told_in(state: Path) -> Path:
    """Where a program writes down what it does."""
    return state / "told.jsonl"


def _standby(subject: Subject, run: Run, folder: Path) -> Processes | None:
    if subject.system.has_warm_standby is None:
        return None
    folder.mkdir()
    return Processes(subject.system, subject.prepared, run, folder)


def faults(verdict: Verdict) -> dict[str, float]:
    """As every result line has them."""
    return {name: float(value) for name, value in asdict(verdict).items()}


def some_moment(interval_ms: int, repeat: int) -> float:
    """Seconds, up to one interval: different in each repeat, the same for every system."""
    return random.Random(repeat).uniform(0, interval_ms / 1000)
