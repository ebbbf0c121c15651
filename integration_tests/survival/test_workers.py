"""Python workers and executors die during a task: the function runs twice, but has its effects once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyspark
import pytest

from integration_tests.survival.job import KafkaJob
from integration_tests.survival.process import Driver, ancestors, is_executor

pytestmark = [pytest.mark.kafka, pytest.mark.kill]


def _armed(folder: Path, spec: str) -> dict[str, str]:
    once = folder / "once"
    once.mkdir()
    return {"SPARK_CKPT_FAILPOINT": spec, "SPARK_CKPT_FAILPOINT_ONCE": str(once)}


def _pids(folder: Path) -> Path:
    pids = folder / "pids"
    pids.mkdir()
    return pids


@pytest.mark.long  # in the gate: a killed worker in integration_tests/runtime/test_users_errors.py
def test_on_one_machine_a_killed_python_worker_costs_an_incarnation(job: KafkaJob) -> None:
    """Spark does not retry tasks in local mode. The worker dies after its files are durable and before the driver knows them."""
    job.ledger.write(10_000)
    pids = _pids(job.lives.folder)
    arguments = ["--operator", "tuples", "--pids", str(pids), "--available-now"]

    with job.lives.start(*arguments, environment=_armed(job.lives.folder, "STAGED:kill")) as driver:
        driver.check_ended_well(300)

    assert [event["incarnation"] for event in driver.events("started")] == [1, 2]
    job.check_exact()


@pytest.mark.timeout(1200)
@pytest.mark.long
def test_on_a_cluster_killed_workers_and_executors_cost_a_retry(job: KafkaJob) -> None:
    """Separate executor processes: a worker dies after it has staged its files, then a whole executor dies at work."""
    job.ledger.write(10_000)
    pids = _pids(job.lives.folder)
    environment = _armed(job.lives.folder, "STAGED:kill") | {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
    arguments = ["--operator", "tuples", "--pids", str(pids), "--master", "local-cluster[2,1,1024]"]

    with job.lives.start(*arguments, environment=environment) as driver:
        driver.wait_for((job.lives.folder / "once" / "STAGED").exists, "a worker dies")
        driver.wait_for_events("published", 1)
        os.kill(_executor_at_work(driver, pids, job), signal.SIGKILL)
        driver.wait_for(lambda: job.watcher.records == job.ledger.records, "everything is published", 300)

    assert [event["incarnation"] for event in driver.events("started")] == [1]
    assert len(list(pids.iterdir())) >= 2, "the function ran in several processes"
    job.check_exact()


def _executor_at_work(driver: Driver, pids: Path, job: KafkaJob) -> int:
    """The executor in which the function runs now, on records written for it."""
    before = time.time()
    job.ledger.write(20_000)
    found: list[int] = []

    def running() -> bool:
        at_work = [int(path.name) for path in pids.iterdir() if path.stat().st_mtime > before]
        found[:] = [executor for pid in at_work for executor in ancestors(pid) if is_executor(executor)]
        return bool(found)

    driver.wait_for(running, "the function runs in an executor")
    return found[0]
