"""Cost of a checkpoint and a restart of Flink with RocksDB and many keys: the peer of `benchmarks.inside.state_size`.

A process fills the state and is killed. A second process starts from its newest checkpoint and changes 1 % of the keys.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.inside.result_line import result_line
from benchmarks.side_by_side.environments import Prepared, prepare
from benchmarks.side_by_side.processes import variables
from benchmarks.side_by_side.usage import processes, status_kib
from benchmarks.systems.flink_cluster import ENVIRONMENT
from benchmarks.systems.flink_state import SHARE

INTERVAL_MS = 2_000
WARM_UP_CHECKPOINTS = 2
FILL_TIMEOUT_S, START_TIMEOUT_S = 3600.0, 600.0
POLL_S = 0.25

Values = dict[str, float]


class Cluster:
    """One process with the job, observed through its REST interface."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, began_s: float) -> None:
        self._process = process
        self._url = f"http://127.0.0.1:{port}"
        self._began_s = began_s
        self._job = ""

    def rows(self) -> int:
        """Rows that the sources of this process have emitted so far."""
        vertices = self._asked(f"/jobs/{self._job}")["vertices"]
        return int(vertices[0]["metrics"]["write-records"])

    def answers(self) -> int:
        """Rows that have reached the operator with the state."""
        vertices = self._asked(f"/jobs/{self._job}")["vertices"]
        return int(vertices[-1]["metrics"]["read-records"])

    def checkpoints(self) -> list[dict[str, Any]]:
        """Completed checkpoints that Flink still lists, oldest first."""
        history = self._asked(f"/jobs/{self._job}/checkpoints")["history"]
        return [each for each in reversed(history) if each["status"] == "COMPLETED"]

    def until(self, holds: Callable[[Cluster], object], timeout_s: float) -> float:
        """Wait until `holds(self)`; return the seconds since the start of the process."""
        deadline_s = time.monotonic() + timeout_s
        while not self._has(holds):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError("Flink has ended, or takes too long: see process.log")
            time.sleep(POLL_S)
        return time.monotonic() - self._began_s

    def _has(self, holds: Callable[[Cluster], object]) -> bool:
        with suppress(OSError, KeyError, IndexError, StopIteration):
            if not self._job:
                self._job = next(each["id"] for each in self._asked("/jobs")["jobs"] if each["status"] == "RUNNING")
            return bool(holds(self))
        return False

    def started_ms(self) -> int:
        """Start of the job, in milliseconds since 1970 UTC; Java, Python and the cluster have started by then."""
        return int(self._asked(f"/jobs/{self._job}")["start-time"])

    def memory_mib(self) -> float:
        """Memory of the process and its Java, without mapped files."""
        return sum(status_kib(each.pid, "RssAnon") for each in processes([self._process.pid])) / 1024

    def _asked(self, path: str) -> Any:
        with urllib.request.urlopen(self._url + path, timeout=30) as answer:
            return json.load(answer)


@contextmanager
def cluster(prepared: Prepared, folder: Path, keys: int) -> Iterator[Cluster]:
    """Start the job in an operating-system session of its own; kill the session at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = {"folder": folder, "keys": keys, "port": port, "interval-ms": INTERVAL_MS}
    arguments["jars"] = ":".join(map(str, prepared.jars))
    command = [str(prepared.python), "-m", "benchmarks.systems.flink_state"]
    command += [f"--{name}={value}" for name, value in arguments.items()]
    began_s = time.monotonic()
    with (folder / "process.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=variables(prepared, folder), stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield Cluster(process, port, began_s)
    finally:
        for each in processes([process.pid]):
            with suppress(ProcessLookupError):
                os.kill(each.pid, 9)
        process.wait()


def fill(prepared: Prepared, folder: Path, keys: int) -> float:
    """Run until a checkpoint holds all keys, and kill the job. Return the seconds to the last key."""
    with cluster(prepared, folder, keys) as job:
        fill_s = job.until(lambda it: it.rows() >= keys, FILL_TIMEOUT_S)
        newest = max((each["id"] for each in job.checkpoints()), default=0)
        # The checkpoint in progress may have begun before the last key.
        job.until(lambda it: it.checkpoints()[-1]["id"] > newest + 1, FILL_TIMEOUT_S)
    return fill_s


def restarted(prepared: Prepared, folder: Path, keys: int, checkpoints: int) -> Values:
    """Restart from the newest checkpoint. Return medians over `checkpoints` checkpoints, and the times to the first ones."""
    found: dict[int, dict[str, Any]] = {}
    rows: list[tuple[float, int]] = []

    def has_enough(job: Cluster) -> bool:
        # Flink lists the last ten only; its answers carry the counts of the previous request.
        found.update({each["id"]: each for each in job.checkpoints()})
        if len(found) >= WARM_UP_CHECKPOINTS:
            rows.append((time.monotonic(), job.answers()))
        return len(found) >= WARM_UP_CHECKPOINTS + checkpoints

    with cluster(prepared, folder, keys) as job:
        job.until(lambda it: it.answers() > 0, START_TIMEOUT_S)
        first_row_ms = time.time() * 1000 - job.started_ms()
        job.until(has_enough, FILL_TIMEOUT_S)
        ordered = [found[number] for number in sorted(found)]
        first_checkpoint_ms = ordered[0]["latest_ack_timestamp"] - job.started_ms()
        memory_mib = job.memory_mib()
    steady = ordered[WARM_UP_CHECKPOINTS:]
    (began_s, before), (ended_s, after) = rows[0], rows[-1]
    return {
        "keys": keys,
        "changed": keys // SHARE,
        "epoch_ms": statistics.median(each["end_to_end_duration"] for each in steady),
        "bytes": statistics.median(each["checkpointed_size"] for each in steady),
        "first_row_s": first_row_ms / 1000,
        "restart_s": first_checkpoint_ms / 1000,
        "rows_per_s": (after - before) / (ended_s - began_s),
        "memory_mib": memory_mib,
    }


def main() -> None:
    """Print a result line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--checkpoints", type=int, default=6, help="measured ones")
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    options = parser.parse_args()
    prepared = prepare(ENVIRONMENT)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        fill_s = fill(prepared, Path(name), options.keys)
        values = restarted(prepared, Path(name), options.keys, options.checkpoints) | {"fill_s": fill_s}
    line = result_line("epoch", f"state-{options.keys}", INTERVAL_MS / 1000, 0, values, "flink_sql")
    print(line, flush=True)


if __name__ == "__main__":
    main()
