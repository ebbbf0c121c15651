"""Runs of a driver that is killed, and the comparison of its sinks with a computation without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

from integration_tests.outbox.outbox_query import Place, Row
from integration_tests.survival.ledger import read_committed
from integration_tests.survival.process import ROOT, state_of, wait_until
from spark_ckpt.failpoints import ONCE_VARIABLE, VARIABLE

POINTS = ("EPOCH_COMMITTING", "EPOCH_COMMITTED", "ACKED")
"""Failpoints of the driver: before the outbox's commit, after it, after a sink has the epoch."""
IN_CHILDREN = ("STAGED", "PRE_COMMIT", "COMMITTING", "PUBLISH_COMMITTED")
"""Failpoints of a task, and of the process that publishes to Kafka."""
PYTHON_VARIABLE = "SPARK_CKPT_TEST_DRIVER_PYTHON"
"""Python interpreter of the drivers, whose environment may have another PySpark. The library is this checkout's."""
_DEAD_BY_SIGNAL = -9


def start(place: Place, points: str, *arguments: str, session: bool = False) -> subprocess.Popen[bytes]:
    """Start the program with these failpoints armed, each once for the place. `session`: in its own session, with its children."""
    once = place.folder / "once"
    once.mkdir(exist_ok=True)
    python = os.environ.get(PYTHON_VARIABLE, sys.executable)
    command = [python, "-m", "integration_tests.outbox.outbox_driver", str(place.folder), *arguments]
    # A Connect server takes a free port by SPARK_TESTING.
    environment = {**os.environ, VARIABLE: points, ONCE_VARIABLE: str(once), "SPARK_TESTING": "1"}
    if python != sys.executable:
        environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "connectors")))
    with (place.folder / "driver.log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=session)


def live(place: Place, points: str, *arguments: str, timeout_s: float = 300) -> int:
    """Run the program once. Return its exit code."""
    driver = start(place, points, *arguments)
    try:
        return driver.wait(timeout_s)
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()


def wait_until_stopped(driver: subprocess.Popen[bytes], timeout_s: float = 300) -> None:
    """Wait until SIGSTOP has stopped the process."""

    def stands_still() -> bool:
        assert driver.poll() is None, "the driver ended"
        return state_of(driver.pid) == "T"

    wait_until(stands_still, "the driver to stop", timeout_s)


def live_until_done(place: Place, points: str, *arguments: str, most: int) -> tuple[int, int]:
    """Start the program again after each kill. Return the number of kills by SIGKILL and of ends with an error."""
    killed = failed = 0
    while (code := live(place, points, *arguments)) != 0:
        killed, failed = killed + (code == _DEAD_BY_SIGNAL), failed + (code != _DEAD_BY_SIGNAL)
        if killed + failed > most:
            raise AssertionError(f"no end after {most} starts: {(place.folder / 'driver.log').read_text()[-3000:]}")
    return killed, failed


def records(servers: str, topic: str) -> Counter[Row]:
    """Committed records of the topic, as rows."""
    values = [json.loads(record.value()) for record in read_committed(servers, topic)]
    return Counter((value["w"], value["k"], value["n"], value["s"]) for value in values)
