"""A session, and the folders of a query with four files of input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration_tests.outbox.outbox_query import FILES, Place, write_files
from integration_tests.spark import plain_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from plain_session()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    write_files(tmp_path / "in", FILES)
    return Place(tmp_path)
