"""The tutorial's commands have the output that it shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tutorial import CONF, PAGE, printed_page

from integration_tests.spark import connected_session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session(CONF)


@pytest.mark.long  # in the gate: tests/rewind, test_an_outbox_is_rewound.py
def test_the_page_has_the_output_of_its_programs_and_commands(spark):
    """Write it again with `python -m integration_tests.rewind.tutorial`, and check the changes."""
    assert printed_page(spark) == PAGE.read_text()
