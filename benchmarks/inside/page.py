"""Time to show a store of ten thousand epochs: requests to `spark-ckpt ui`, and the page in a browser.

The store is a real one on the local disk; its log commits each epoch as a driver does. `first`: a newly started process reads
the whole log. `again`: the same process, after one more epoch. Each is measured as wall-clock time and as processor time of the
process; `start`: processor time until the process prints its address. `drawn`: Chromium opens a file with that answer, and the
page's script reports when it has drawn it.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.inside.sessions import median_and_spread
from benchmarks.side_by_side.usage import parsed
from spark_ckpt.epochs.records import Holder, Manifest, PartTime, SinkAck, StagedOutput, Timings
from spark_ckpt.observability.page.report import drawn
from spark_ckpt.store.store import Store

EPOCHS = 10_000
TARGET_MS = 1000
SINK = "out"
PATHS = ("", "page.css", "page.js", "api/jobs")
WAIT_S = 120
NAMES = ("start, CPU", "first", "first, CPU", "again", "again, CPU", "drawn")


class Filled:
    """A store with committed epochs without rows."""

    def __init__(self, folder: Path) -> None:
        self.uri = str(folder)
        self._store = Store.open(self.uri, "page")
        holder = Holder(host="here", boot_id="b", pid=1, pid_start=1, name="benchmark")
        self._incarnation = self._store.log.begin_incarnation(holder, lease_ms=3_600_000).incarnation
        self._last = 0

    def decide(self, count: int) -> None:
        """Commit `count` more epochs, each with its own commit of the log."""
        for _ in range(count):
            self._store.log.commit_epoch(self._next())
            self._last += 1

    def _next(self) -> Manifest:
        epoch = self._last + 1
        earlier = tuple(
            PartTime(epoch=self._last, part=part, sink=sink, duration_ms=20)
            for part, sink in (("decision", ""), ("publish", SINK))
        )
        return Manifest(
            job="page",
            epoch=epoch,
            incarnation=self._incarnation,
            attempt=uuid.uuid4().hex,
            base=self._last,
            previous=self._last,
            created_ms=1_700_000_000_000 + epoch * 5000,
            duration_ms=400 + epoch % 300,
            reason="interval",
            outputs={SINK: StagedOutput(sink=SINK, files=(), rows=0)},
            acks=(SinkAck(sink=SINK, epoch=self._last),) if self._last else (),
            timings=Timings(
                barrier_ms=100,
                snapshot_ms=250 + epoch % 300,
                earlier=earlier if self._last else (),
                lag_rows={"in": epoch},
            ),
        )


class Asked(NamedTuple):
    """Answers that a browser gets when it opens the page, the time until all have arrived, and their processor time."""

    jobs: bytes
    ms: float
    cpu_ms: float


@dataclass(frozen=True)
class Served:
    """A process of `spark-ckpt ui`."""

    url: str
    pid: int

    @property
    def cpu_ms(self) -> float:
        """Processor time since the start of the process, in steps of the system's clock tick of 10 ms."""
        process = parsed(self.pid, Path(f"/proc/{self.pid}/stat").read_text())
        if process is None:
            raise RuntimeError("the page's process has ended")
        return 1000 * process.cpu_s

    def asked(self) -> Asked:
        """Request the paths in order, the jobs last. Raises `RuntimeError` if the store could not be read."""
        before_ms, began_s = self.cpu_ms, time.perf_counter()
        for path in PATHS:
            with urllib.request.urlopen(self.url + path, timeout=WAIT_S) as answer:
                body = answer.read()
        asked = Asked(body, 1000 * (time.perf_counter() - began_s), self.cpu_ms - before_ms)
        if any("error" in job for job in json.loads(body)):
            raise RuntimeError(f"the page has nothing to show: {body.decode()}")
        return asked


@contextmanager
def served(store: str) -> Iterator[Served]:
    """Start `spark-ckpt ui` as a user does. Raises `RuntimeError` if it does not print its address."""
    command = [sys.executable, "-m", "spark_ckpt", "ui", store, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = process.stdout.readline() if process.stdout is not None else ""
            if not said.startswith("http"):
                raise RuntimeError(f"the page was not served: {said or 'nothing was said'}")
            yield Served(said.split()[0], process.pid)
        finally:
            process.terminate()


def drawn_ms(chromium: str, jobs: bytes, folder: Path) -> float:
    """Milliseconds that the page's script reports. Raises `RuntimeError` if it has drawn nothing."""
    folder.mkdir()
    page = folder / "page.html"
    page.write_text(drawn("page", json.loads(jobs)))
    command = [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={folder / 'profile'}", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    ready = re.search(r'data-ready="(\d+)"', done.stdout)
    if ready is None:
        raise RuntimeError("the page was not drawn")
    return float(ready[1])


def measured(rounds: int, epochs: int) -> dict[str, list[float]]:
    """Milliseconds by request."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    with tempfile.TemporaryDirectory() as name:
        store = Filled(Path(name) / "store")
        store.decide(epochs)
        for repeat in range(rounds):
            with served(store.uri) as page:
                found["start, CPU"].append(page.cpu_ms)
                _note(found, "first", page.asked())
                store.decide(1)
                again = page.asked()
                _note(found, "again", again)
            if chromium is not None:
                found["drawn"].append(drawn_ms(chromium, again.jobs, Path(name) / str(repeat)))
    return found


def _note(found: Mapping[str, list[float]], when: str, answer: Asked) -> None:
    found[when].append(answer.ms)
    found[f"{when}, CPU"].append(answer.cpu_ms)


def table(found: Mapping[str, Sequence[float]], epochs: int) -> list[str]:
    """A Markdown table against the target of a second."""
    head = [f"| the page of {epochs:,} epochs | ms, median (min-max) | under {TARGET_MS} ms |", "|---|---|---|"]
    return head + [
        f"| {what} | {median_and_spread(ms)} | {'yes' if ms and max(ms) < TARGET_MS else 'no' if ms else 'no browser'} |"
        for what, ms in found.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    print("\n".join(table(measured(options.rounds, options.epochs), options.epochs)))
