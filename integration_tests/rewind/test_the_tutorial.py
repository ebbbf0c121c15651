"""The tutorial's story happens as it is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tutorial import CONF, PAGE, told

from integration_tests.spark import connected_session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session(CONF)


@pytest.mark.long  # in the gate: the plan of a page in test_plain_queries_are_planned.py
def test_what_the_page_shows_is_what_its_programs_and_commands_print(spark):
    """Write it anew with `python -m integration_tests.rewind.tutorial`, and look at what has changed."""
    assert told(spark) == PAGE.read_text()
