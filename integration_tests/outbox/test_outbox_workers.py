"""A Python worker or an executor dies during a batch: every row is in the table once, and its files are deleted later."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyspark
import pytest

from integration_tests.outbox.outbox_deaths import live, start
from integration_tests.outbox.outbox_query import BEGIN_S, Place, expected, write_files
from integration_tests.survival.process import ancestors, is_executor
from spark_ckpt.delta_files import LOG
from spark_ckpt.store.store import Store

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.timeout(900)]
FILES = range(4)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    write_files(tmp_path / "in", FILES)
    return Place(tmp_path)


def incarnations(place: Place) -> int:
    return Store.open(place.store, "orders", kind="outbox").log.state().incarnation


def orphans(place: Place) -> set[str]:
    """Data files of the table that are in no version of it."""
    table = Path(place.table("gold"))
    log = "".join(path.read_text() for path in (table / LOG).glob("*.json"))
    return {path.name for path in table.rglob("*.parquet") if LOG not in path.parts and path.name not in log}


def made_old(place: Place) -> None:
    """Make files old: those of a dead attempt are deleted at an age that excludes running attempts."""
    for path in Path(place.table("gold")).rglob("*.parquet"):
        os.utime(path, (BEGIN_S, BEGIN_S))


@pytest.mark.long  # in the gate: tests/outbox/test_rule.py
def test_a_worker_that_dies_after_it_staged_files_costs_an_attempt_of_its_task(place: Place) -> None:
    assert live(place, "STAGED:kill:2", "--master", "local[2,4]") == 0
    assert (place.folder / "once" / "STAGED").exists()
    assert incarnations(place) == 1
    assert place.rows("gold") == expected(FILES)
    assert orphans(place)
    made_old(place)
    write_files(place.inbox, range(4, 5))
    assert live(place, "") == 0
    assert place.rows("gold") == expected(range(5))
    assert not orphans(place)


def stopped_workers() -> list[int]:
    """Process ids of this user's Python workers that SIGSTOP has stopped."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state = stat.read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state == "T" and any(is_executor(each) for each in ancestors(int(stat.parent.name))):
            found.append(int(stat.parent.name))
    return found


@pytest.mark.long  # in the gate: the attempt of a killed worker above
def test_an_executor_that_is_lost_in_a_batch_costs_an_attempt(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker stops after it has staged its files; then its executor, with all its workers, is lost."""
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    driver = start(place, "STAGED:stop:1", "--master", "local-cluster[2,1,1024]")
    try:
        worker = _first_stopped(driver.pid)
        (executor,) = [each for each in ancestors(worker) if is_executor(each)]
        os.kill(executor, signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)
        assert driver.wait(400) == 0
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()
    assert incarnations(place) == 1
    assert place.rows("gold") == expected(FILES)


def _first_stopped(driver: int) -> int:
    until_s = time.monotonic() + 300
    while time.monotonic() < until_s:
        if found := [each for each in stopped_workers() if driver in ancestors(each)]:
            return found[0]
        time.sleep(0.05)
    raise AssertionError("no worker has stopped")
