"""A long run at short epochs: memory, files and epoch time must stay constant."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from integration_tests.broker import Broker
from integration_tests.campaign.kafka_kills import ARGUMENTS, drain, hard_job
from integration_tests.campaign.trial import Results
from integration_tests.survival.process import Driver

RATE, SAMPLE_S = 300, 15.0


@dataclass(frozen=True)
class Sample:
    """One sample: resident memory of driver, JVM and all children, files of the store, duration of the newest epochs.

    Log files of the three tables have their own count: on a file system they stay for five minutes (`store/trim.py`), so they grow
    that long.
    """

    memory_mib: float
    files: int
    log_files: int
    epoch_ms: float


def soak(broker: Broker, folder: Path, minutes: float, seed: int, results: Results) -> None:
    """Run one driver for `minutes`, an epoch each second; compare the second and the last sixth of the time."""
    job = hard_job(broker.servers, folder / "soak", seed)
    samples: list[Sample] = []
    try:
        driver = job.lives.start(*ARGUMENTS)
        driver.wait_for_events("committed", 1)
        end_s = time.monotonic() + minutes * 60
        while time.monotonic() < end_s:
            next_s = time.monotonic() + SAMPLE_S
            while time.monotonic() < next_s:
                job.ledger.write(RATE)
                time.sleep(1)
            samples.append(_look(driver, job.store))
        epochs = len(driver.events("committed"))
        driver.kill()
        drain(job, results)
    finally:
        job.close()
    sixth = max(1, len(samples) // 6)
    early, late = samples[sixth : 2 * sixth] or samples, samples[-sixth:]
    figures = {"minutes": minutes, "epochs": epochs, "incarnations": len(driver.events("started"))}
    results.add("long run", figures | _figures("early", early) | _figures("late", late))


def _figures(when: str, samples: Sequence[Sample]) -> dict[str, float]:
    return {
        f"memory MiB, {when}": round(statistics.median(sample.memory_mib for sample in samples)),
        f"files, {when}": round(statistics.median(sample.files for sample in samples)),
        f"files of logs, {when}": round(statistics.median(sample.log_files for sample in samples)),
        f"epoch ms, {when}": round(statistics.median(sample.epoch_ms for sample in samples)),
    }


def _look(driver: Driver, store: Path) -> Sample:
    newest = [event["duration_ms"] for event in driver.events("committed")[-10:]]
    every = [path.relative_to(store).parts for path in store.rglob("*") if path.is_file()]
    logs = sum("_delta_log" in parts or parts[0] == "epochs" for parts in every)
    memory_mib = sum(_resident_mib(pid) for pid in driver.family())
    return Sample(memory_mib, len(every) - logs, logs, statistics.median(newest))


def _resident_mib(pid: int) -> float:
    """The process's share of memory: pages that forked workers share count once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
