"""A job from Kafka to Kafka for each test, and places of jobs on files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration_tests.broker import Broker
from integration_tests.spark import connected_session
from integration_tests.survival.job import KafkaJob
from integration_tests.survival.session import Place
from spark_ckpt import failpoints


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """kafka-python leaves refused sockets to the garbage collector."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture
def job(broker: Broker, tmp_path: Path) -> Iterator[KafkaJob]:
    """A job with its own topics and store. All its processes end with the test."""
    one = KafkaJob.new(broker.servers, tmp_path)
    yield one
    one.close()


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """One session for the cheap tests of this folder, with Spark's Kafka connector."""
    yield from connected_session()


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    """Folders of one job's input, store and output."""
    return Place(spark, tmp_path)


@pytest.fixture
def crash() -> Iterator[Callable[[str], None]]:
    """Arm this process: the next run fails at the failpoint, without cleanup, as in a crash."""
    yield failpoints.arm
    failpoints.arm("")
