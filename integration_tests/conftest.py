"""What all tests on Spark share: their order, and Java processes that start fast and end in time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from integration_tests.spark import SMALL_JAVA, end_idle_session

PYTHON_START = str(Path(__file__).parent / "python_start")
sys.path.append(PYTHON_START)  # tests hand their path on to the programs that they start
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [PYTHON_START, os.environ.get("PYTHONPATH")]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First what makes the class archive from which every later driver starts. Then what Spark does not promise: what it finds
    would fail many others, and less plainly. The order of all others is kept."""
    items.sort(key=lambda item: _place(item.path))


def _place(path: Path) -> int:
    if path.name == "test_class_archive_start.py":
        return 0
    return 1 if path.parent.name == "spark_private" else 2


@pytest.fixture(autouse=True)
def small_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """For programs that a test starts."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", SMALL_JAVA)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the fixtures' own ends: a session that no test asks for next, nor perhaps a later one of its folder, ends."""
    if nextitem is None or not (_asks_for_spark(nextitem) or nextitem.path.parent == item.path.parent):
        end_idle_session()


def _asks_for_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())
