"""Find Spark's tests in the installed PySpark, and give each test what Spark's own test runner provides.

PySpark ships them in `pyspark.zip`. All tests share one session. A class's settings are set while one of its tests runs.
"""

from __future__ import annotations

import importlib
import os
import sys
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pyspark.sql
from pyspark import SparkConf, cloudpickle
from pyspark.sql import SparkSession

from integration_tests.programs.histories import session_set

TESTS = "pyspark.sql.tests"
_STATE = "pandas.streaming.test_{}transform_with_state{}"
MODULES = (
    "pandas.test_pandas_grouped_map_with_state",
    "streaming.test_streaming",
    "streaming.test_streaming_foreach_batch",
    _STATE.format("pandas_", ""),
    _STATE.format("pandas_", "_state_variable"),
    _STATE.format("", ""),
    _STATE.format("", "_state_variable"),
    "streaming.test_streaming_offline_state_repartition",
    "streaming.test_streaming_listener",
    "streaming.test_streaming_foreach",
    "streaming.test_streaming_kafka_rtm",
    _STATE.format("pandas_", "_checkpoint_v2"),
    _STATE.format("pandas_", "_state_variable_checkpoint_v2"),
    _STATE.format("", "_checkpoint_v2"),
    _STATE.format("", "_state_variable_checkpoint_v2"),
)
_FIRST_ROW = {"test_schema_evolution_scenarios"}
"""Tests that take the first row of a batch for that of a key, so they need the partitions of their suite, 3 or 5. Other tests
only get more tasks from more partitions."""
_FILES = {
    "text-test.txt": "hello\nthis\n",
    "time/text-test.txt": "".join(f"2024-07-01 00:00:{at:02};{at % 6}\n" for at in (*range(12), *range(12))),
}


@dataclass(frozen=True)
class Case:
    """One test of Spark. `module` is without `pyspark.sql.tests`."""

    module: str
    suite: str
    test: str

    @property
    def name(self) -> str:
        """Module, class and method."""
        return f"{self.module}.{self.suite}.{self.test}"

    @property
    def group(self) -> type[unittest.TestCase]:
        """The class of the test."""
        return getattr(importlib.import_module(f"{TESTS}.{self.module}"), self.suite)

    def settings(self) -> dict[str, str]:
        """Settings of SQL that the class asks for."""
        own, base = dict(self.group.conf().getAll()), dict(SparkConf().getAll())
        asked = {key: value for key, value in own.items() if key.startswith("spark.sql.") and base.get(key) != value}
        return asked if self.test in _FIRST_ROW else asked | {"spark.sql.shuffle.partitions": "2"}

    def run(self, spark: SparkSession) -> unittest.TestResult:
        """Run the test in this session."""
        group: Any = self.group
        group.spark, group.sc = spark, spark.sparkContext
        spark.streams.resetTerminated()  # otherwise earlier tests' queries would end `awaitAnyTermination`
        result = unittest.TestResult()
        with session_set(spark, self.settings()):
            group(self.test).run(result)
        return result


def cases() -> list[Case]:
    """Return all tests, in the order of `MODULES`."""
    _find_sparks_tests()
    return [case for module in MODULES for case in _cases_of(module)]


def _cases_of(module: str) -> Iterator[Case]:
    loaded = importlib.import_module(f"{TESTS}.{module}")
    for each in [each for name, each in sys.modules.items() if name.startswith(TESTS)]:
        cloudpickle.register_pickle_by_value(each)  # workers cannot import from `pyspark.zip`
    for name, group in sorted(vars(loaded).items()):
        if isinstance(group, type) and issubclass(group, unittest.TestCase) and group.__module__ == loaded.__name__:
            for test in unittest.defaultTestLoader.getTestCaseNames(group):
                if test != "test_assert_classic_mode":  # of all suites; it has no query
                    yield Case(module, name, test)


def _find_sparks_tests() -> None:
    archive = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    inside = f"{archive}/pyspark/sql"
    if inside not in pyspark.sql.__path__ and not (Path(pyspark.sql.__path__[0]) / "tests").is_dir():
        pyspark.sql.__path__.append(inside)


def lay_out_input(folder: Path) -> None:
    """Change to a folder with the files that Spark's tests read by paths from the root of Spark's sources."""
    for name, text in _FILES.items():
        path = folder / "python" / "test_support" / "sql" / "streaming" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    os.chdir(folder)
