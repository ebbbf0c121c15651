"""Property tests are bounded by their number of examples, never by wall time: machines are shared.

`pytest --hypothesis-profile=thorough` tries ten times as many, and so does the weekly run (`.ci/run newest`). A bug that it finds
becomes an `@example`.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("shared-machine", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=400)
settings.load_profile("shared-machine")

HERE = Path(__file__).parent
SMOKE = ("conformance", "delta", "files", "coordination", "kafka", "runtime", "store", "trace")
"""Folders whose tests a smoke run has: commit and storage of an epoch, operators, sources and sinks, without Java. A few tests
with Spark and with Kafka are marked in their files."""
FIRST = ("specs", "simulator")
"""Folders of the longest files: workers that get them first end together with the others."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep half a million objects of imports and collected tests until the end, without garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the smoke run, and put the longest files first in this folder. The order of all others is kept."""
    for item in items:
        if _folder(item) in SMOKE and item.get_closest_marker("long") is None:
            item.add_marker(pytest.mark.smoke)
    items.sort(key=lambda item: (_folder(item) is not None) + (_folder(item) not in (None, *FIRST)))


def _folder(item: pytest.Item) -> str | None:
    """Return the folder of a test of this tree; None for any other test."""
    return _folder_of(item.path)


@cache
def _folder_of(path: Path) -> str | None:
    return path.relative_to(HERE).parts[0] if path.is_relative_to(HERE) else None
