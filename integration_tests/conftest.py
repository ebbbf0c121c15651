"""What all these tests have in common: the order of their files, and the cache that drivers start from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ckpt import jars

FIRST = ("spark_private", "test_class_archive_start.py")
"""The tests of what Spark does not promise come first: what they find would fail many others, and less plainly. The next
makes the archive from which the drivers of all others start.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the order of all others."""
    items.sort(key=lambda item: (item.path.parent.name != FIRST[0], item.path.name != FIRST[1]))


@pytest.fixture(scope="session", autouse=True)
def prepared(pytestconfig: pytest.Config) -> Iterator[Path]:
    """A cache of the tests' own, with the user's jars, as `spark-ckpt prepare` leaves it: starting from an archive of classes
    takes a fifth off the processor time of a short life. Until there is one, drivers start without it, only more slowly.
    """
    cache = pytestconfig.rootpath / ".pytest_cache" / "prepared"
    ours = cache / "spark_ckpt" / "jars"
    ours.parent.mkdir(parents=True, exist_ok=True)
    fresh = ours.with_name(f"jars-{os.getpid()}")
    fresh.symlink_to(jars.cache_folder())
    fresh.replace(ours)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield cache
