"""More kills than the tests of survival have: during a recovery, and of a single process of the driver."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from integration_tests.survival.kills import IN_CHILDREN, IN_DRIVER, Kill, at_point, at_random
from integration_tests.survival.process import Driver, started

WORKER, PUBLISHER, JVM = (
    "-m spark_ckpt.tasks.python_daemon",
    "spark_ckpt_kafka.publisher_process",
    "org.apache.spark.deploy.SparkSubmit",
)
"""Parts of command lines. The JVM's has the daemon's module too, in a setting."""


def drawn(draw: random.Random, folder: Path) -> Kill:
    """Draw the next kill. `folder` is its own."""
    folder.mkdir()
    chosen = draw.choices(("point", "random", "recovery", "jvm", "worker", "publisher"), (36, 30, 16, 6, 6, 6))[0]
    match chosen:
        case "point":
            return at_point(draw.choice((*IN_DRIVER, *IN_CHILDREN)), folder)
        case "recovery":
            return in_recovery(draw)
        case "jvm":
            return Kill("the JVM alone", jvm_alone)
        case "worker":
            return then_all("a Python worker alone", WORKER, draw)
        case "publisher":
            return then_all("a publishing process alone", PUBLISHER, draw)
        case _:
            return at_random(draw)


def in_recovery(draw: random.Random) -> Kill:
    """Kill all processes while the driver starts: before it holds the lease, during the restore, or in its first batch."""
    delay_s, behind = draw.uniform(0, 1.5), draw.random() < 0.6

    def strike(driver: Driver) -> None:
        if behind:
            driver.wait_for_events("started", 1)
        else:
            driver.wait_for(lambda: bool(of_family(driver, JVM)), "the JVM starts")
        time.sleep(delay_s)  # a random moment of the kill
        driver.kill()

    return Kill("in recovery", strike)


def jvm_alone(driver: Driver) -> None:
    """Kill the JVM. The driver program must notice, report and end, and leave no process running."""
    driver.wait_for_events("committed", 1)
    os.kill(of_family(driver, JVM)[0], signal.SIGKILL)  # a child of the JVM has its command line for a moment
    code = driver.wait_for_end()
    assert code not in (0, -signal.SIGKILL), f"the driver ended with {code} without its JVM\n{driver.log()}"
    driver.kill()


def then_all(name: str, part: str, draw: random.Random) -> Kill:
    """Kill one process; the job continues by itself and commits again; then kill all processes."""
    delay_s = draw.uniform(0, 0.5)

    def strike(driver: Driver) -> None:
        driver.wait_for_events("committed", 1)
        driver.wait_for(lambda: bool(of_family(driver, part)), f"{part} is there")
        before = len(driver.events("committed"))
        slay(driver, part)
        driver.wait_for_events("committed", before + 1)
        time.sleep(delay_s)  # a random moment of the kill
        driver.kill()

    return Kill(name, strike)


def slay(driver: Driver, part: str) -> None:
    """Send SIGKILL to the youngest process of the driver's session whose command line contains `part`."""
    os.kill(of_family(driver, part)[-1], signal.SIGKILL)


def of_family(driver: Driver, part: str) -> Sequence[int]:
    """Living processes of the driver's session whose command line contains `part`, oldest first."""
    return sorted((pid for pid in driver.family() if part in command_of(pid)), key=started)


def command_of(pid: int) -> str:
    """The command line; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
