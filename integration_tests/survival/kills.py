"""Ways to kill a driver, and damage to Spark's own checkpoint afterwards."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from integration_tests.survival.process import Driver, state_of, wait_until

IN_DRIVER = ("EPOCH_COMMITTING", "EPOCH_COMMITTED", "ACKED")
"""Failpoints in the driver: it kills itself there."""

IN_CHILDREN = (
    "STAGED",
    "PUBLISH_INIT",
    "MARKER_READ",
    "MID_SEND",
    "OFFSETS_SENT",
    "FLUSHED",
    "PRE_COMMIT",
    "COMMITTING",
    "PUBLISH_COMMITTED",
)
"""Failpoints in Python workers and publisher processes: the child freezes there, then all processes are killed at once."""


IN_LANES_AHEAD = ("SENDING_EARLY", "SENT_EARLY")
"""Failpoints in publisher processes of a job with early sends."""


@dataclass(frozen=True)
class Kill:
    """One kill. `strike` waits for its moment and kills."""

    name: str
    strike: Callable[[Driver], None]
    environment: Mapping[str, str] = field(default_factory=dict)


def at_point(point: str, folder: Path, nth: int = 1) -> Kill:
    """Kill the driver while it, or its child, is exactly at a failpoint, for the nth time."""
    once = folder / f"once-{point}"
    once.mkdir()
    freezes = point in (*IN_CHILDREN, *IN_LANES_AHEAD)
    delay = ":1" if point == "COMMITTING" else ""
    spec = f"{point}:{'stop' if freezes else 'kill'}:{nth}{delay}"

    def strike(driver: Driver) -> None:
        if not freezes:
            driver.wait_for_end()
        else:
            driver.wait_for((once / point).exists, f"failpoint {point}")
            driver.wait_for(lambda: bool(frozen(driver)), f"a process frozen at {point}")
            if point == "PUBLISH_INIT":  # passed before any rows are published
                driver.wait_for_events("committed", 1)
        assert (once / point).exists(), f"the driver did not die at {point}\n{driver.log()}"
        driver.kill()

    return Kill(point, strike, {"SPARK_CKPT_FAILPOINT": spec, "SPARK_CKPT_FAILPOINT_ONCE": str(once)})


def at_random(draw: random.Random) -> Kill:
    """Kill the driver up to two seconds after an event that every incarnation has; its JVM at the same time, or later."""
    kind, count = draw.choice([("started", 1), ("committed", 1), ("committed", 1), ("published", 1), ("committed", 2)])
    delay_s, whole = draw.uniform(0, 2), draw.random() < 0.5

    def strike(driver: Driver) -> None:
        driver.wait_for_events(kind, count)
        time.sleep(delay_s)  # a random moment of the kill
        driver.kill() if whole else kill_python_first(driver)

    return Kill(f"{delay_s:.2f} s after {kind} {count}, {'whole' if whole else 'python first'}", strike)


def kill_python_first(driver: Driver) -> None:
    """Kill the program alone; its JVM, workers and publisher processes must notice and end."""
    driver.kill_python()
    wait_until(lambda: not driver.family(), "the dead driver's JVM and children end by themselves")


def frozen(driver: Driver) -> list[int]:
    """Processes of the driver that are frozen at a failpoint."""
    return [pid for pid in driver.family() if state_of(pid) == "T"]


# -- possible remains of Spark's checkpoint after a crash, without effect on the job ---------------------------------


def last_commit_lost(checkpoint: Path) -> None:
    _remove(_entries(checkpoint / "commits")[-1:])


def two_commits_lost(checkpoint: Path) -> None:
    _remove(_entries(checkpoint / "commits")[-2:])


def last_offsets_lost(checkpoint: Path) -> None:
    _remove(_entries(checkpoint / "offsets")[-1:])


def last_offsets_torn(checkpoint: Path) -> None:
    for path in _entries(checkpoint / "offsets")[-1:]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def state_lost(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "state", ignore_errors=True)


def untouched(checkpoint: Path) -> None:
    """Leave it as after the crash."""


DAMAGES: Sequence[Callable[[Path], None]] = (
    untouched,
    last_commit_lost,
    two_commits_lost,
    last_offsets_lost,
    last_offsets_torn,
    state_lost,
)


def damage_newest(store: Path, damage: Callable[[Path], None]) -> None:
    """Damage Spark's checkpoint of the newest incarnation, if there is one: the first driver may die before."""
    for run in _entries(store / "runs")[-1:]:
        damage(run / "stage")


def _entries(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("[0-9]*")), key=lambda path: int(path.name))


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink()
