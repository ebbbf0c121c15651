"""Requests of a whole job to an object store, per epoch: `--epochs` epochs of `--interval` seconds, after as many to settle.

The store is on moto, an S3 server; source and sink use no store. Requests are counted in moto's log, by method and folder.

Run: python -m benchmarks.inside.requests
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections import Counter
from pathlib import Path

import spark_ckpt as ckpt
from benchmarks.inside.chains import chain
from benchmarks.inside.endless import EndlessSource
from benchmarks.inside.null_sink import NullSink
from benchmarks.inside.sessions import benchmark_session
from integration_tests.s3 import Requests, running_s3

STORE = "bucket/store"
ROWS, KEYS = 100, 1000
BATCH_S = 1
ENOUGH_S = 600


def main(epochs: int, interval_s: int) -> None:
    """Print a line per place, and the sum."""
    with tempfile.TemporaryDirectory(prefix="ckpt-requests-") as folder:
        log = Path(folder) / "log"
        with running_s3(log) as options:
            job = ckpt.Job(
                benchmark_session(),
                "requests",
                f"s3://{STORE}",
                storage_options=options,
                interval=f"{interval_s} seconds",
                trigger=f"{BATCH_S} seconds",
                run_dir=f"{folder}/run",
            )
            chain(job.source("input", EndlessSource(ROWS, f"pmod(hash(n), {KEYS})")), 1).to(NullSink())
            commits = Commits()
            job.addListener(commits)
            run = job.start()
            try:
                commits.wait(epochs)
                requests, before = Requests(log), commits.count
                commits.wait(before + epochs)
                report(requests.paths_since(), commits.count - before)
            finally:
                run.stop()


class Commits(ckpt.RunListener):
    """Counts committed epochs, without requests to the store, which would count too."""

    def __init__(self) -> None:
        self.count = 0
        self._more = threading.Condition()

    def onEpochCommitted(self, event: ckpt.EpochEvent) -> None:
        """Count one more."""
        with self._more:
            self.count += 1
            self._more.notify_all()

    def onIncarnationEnded(self, event: ckpt.IncarnationEvent) -> None:
        """Wake a thread that waits for further epochs."""
        with self._more:
            self.count = -1
            self._more.notify_all()

    def wait(self, count: int) -> None:
        """Wait for `count` epochs."""
        with self._more:
            if not self._more.wait_for(lambda: self.count < 0 or self.count >= count, ENOUGH_S) or self.count < 0:
                raise RuntimeError(f"epoch {count} was not committed")


def report(requests: list[tuple[str, str]], epochs: int) -> None:
    """Print requests per epoch."""
    places = Counter((place_of(path), method) for method, path in requests)
    for (place, method), count in sorted(places.items()):
        print(f"{place:24} {method:6} {count / epochs:6.2f}")
    print(f"{'all':24} {'':6} {len(requests) / epochs:6.2f} per epoch, of {epochs} epochs")


def place_of(path: str) -> str:
    """Return the first two folders below the store, of an object or of a listing."""
    below = path.replace("%2F", "/").partition("store/")[2]
    return "/".join(part for part in below.split("&")[0].split("/")[:2] if "." not in part) or "(root)"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--interval", type=int, default=3, help="seconds")
    given = parser.parse_args()
    main(given.epochs, given.interval)
