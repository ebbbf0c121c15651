"""One session for all names, and observations of one streaming query and one task."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from integration_tests.spark import ending
from integration_tests.spark_private.watched_query import Seen, watched_query
from spark_ckpt.spark_internals.launching import launches_run_first
from spark_ckpt.spark_internals.python_workers import DAEMON_MODULE, unix_sockets
from spark_ckpt.spark_internals.settings import LOCAL_CHECKPOINT_SETTINGS, QUERY_SETTINGS

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder


@pytest.fixture(scope="module")
def launch_mark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that the child process creates in which PySpark launches Java."""
    return tmp_path_factory.mktemp("launch") / "mark"


@pytest.fixture(scope="module")
def socket_folder() -> Iterator[Path]:
    """A folder with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def spark(launch_mark: Path, socket_folder: Path) -> Iterator[SparkSession]:
    """A session that is launched and configured as `spark_ckpt.session` does."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    before = signal.getsignal(signal.SIGINT)
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.showConsoleProgress", "false")
    private = {DAEMON_MODULE: "spark_ckpt.tasks.python_daemon"} | unix_sockets(str(socket_folder))
    for key, value in (QUERY_SETTINGS | LOCAL_CHECKPOINT_SETTINGS | private).items():
        builder = builder.config(key, value)
    with launches_run_first(launch_mark.touch):
        session = builder.getOrCreate()
    yield from ending(session)
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def loaded(spark: SparkSession) -> list[str]:
    """The modules that a worker of this session has loaded before its first task."""
    return json.loads(spark.range(1).mapInArrow(_loaded, "loaded string").collect()[0]["loaded"])


def _loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"loaded": [json.dumps(sorted(sys.modules))]})


@pytest.fixture(scope="module")
def seen(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Observations of one query."""
    return watched_query(spark, tmp_path_factory.mktemp("checkpoint"))
