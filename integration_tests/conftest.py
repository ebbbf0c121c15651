"""Shared by all tests on Spark: their order, a broker, and processes that start fast and end in time."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

from integration_tests.broker import Broker, running_broker
from integration_tests.spark import SMALL_JAVA, SUBMIT_ARGUMENTS, end_idle_session
from spark_ckpt.spark_internals.launching import PYTHON_START
from spark_ckpt.spark_session import class_archive

HERE = Path(__file__).parent
sys.path.append(PYTHON_START)  # tests pass their path on to the programs that they start
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [PYTHON_START, os.environ.get("PYTHONPATH")]))


FOLDERS = ("spark_private", "delta", "kafka", "survival", "rewind", "adopt", "docs", "nexmark", "demo", "side_by_side")
"""First Spark's unpromised behaviour, since a fault there would fail other tests less plainly. Then tests with connectors, which
share one session, and last tests without connectors: so a worker starts Java twice."""
TOGETHER = {
    "delta/": "delta-spark", "adopt/": "delta-spark", "docs/test_examples": "delta-spark",
    "kafka/test_publish": "no Spark",
    "kafka/": "kafka", "nexmark/": "kafka", "rewind/": "kafka",
    "outbox/test_outbox_killed": "survival",
    "survival/": "survival",
}  # fmt: skip
"""Files with the same name in this table run in one worker, one after the other; the first entry that a path starts with counts. A
new session costs 10 s of processor time, and delta-spark's first write and merge in it 15 s more, since Java loads and compiles
classes. A broker costs 8 s."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the folders; the order within a folder remains, and that of other folders."""
    items.sort(key=lambda item: _place(item.path))


@cache
def _place(path: Path) -> int:
    if path.name == "test_class_archive_start.py":
        return -1  # it creates the archive that later drivers start from
    if not path.is_relative_to(HERE):
        return len(FOLDERS) + 1
    folder = path.relative_to(HERE).parts[0]
    return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)


class _Together(LoadFileScheduling):
    """Runs all tests of a file in one worker, and those of some files together."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.removeprefix(f"{HERE.name}/")
        named = (name for start, name in TOGETHER.items() if path.startswith(start))
        return next(named, super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _Together | None:
    return _Together(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of modules that Spark's workers can import: Java passes on its environment of the start to them."""
    folder = tmp_path_factory.mktemp("modules")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    return folder


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all tests of a worker, whose topics have their own names; a test that kills it starts it again."""
    with running_broker(tmp_path_factory.mktemp("broker"), {"log.cleaner.backoff.ms": "500"}) as running:
        yield running
    gc.collect()  # kafka-python leaves refused sockets to the garbage collector


@pytest.fixture(autouse=True)
def small_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of Java for programs that a test starts."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", f"{SMALL_JAVA} {class_archive.options()}")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", SUBMIT_ARGUMENTS)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the fixtures' own ends: a session ends before tests of other folders, which need none. Tests here without Spark are
    short, and a new session costs more than one that waits for them."""
    if nextitem is None or not nextitem.path.is_relative_to(HERE):
        end_idle_session()
