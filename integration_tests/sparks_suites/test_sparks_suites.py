"""A test of Spark passes with a healthy job, and fails by its own assertion with a job that loses rows or state.

Long: minutes of Spark's own tests. tests/store/test_sparks_state_files.py judges the state of an epoch without Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration_tests.spark import plain_session
from integration_tests.sparks_suites.suites import Case, cases, lay_out_input
from integration_tests.sparks_suites.trials import Outcome, try_case
from spark_ckpt.driver import incarnation
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.query.spark_state import CheckpointState, checkpoint_state
from spark_ckpt.epochs.restore import RecoveryPoint

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from plain_session()


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    """A sum per key over two batches, so the second one needs the state of the first."""
    before = Path.cwd()
    lay_out_input(tmp_path)
    wanted = ("TransformWithStateInPandasStateVariableTests", "test_transform_with_state_init_state")
    yield next(case for case in cases() if (case.suite, case.test) == wanted)
    os.chdir(before)


def test_a_test_of_spark_passes_with_a_job_that_restarts(spark: SparkSession, case: Case) -> None:
    trial = try_case(spark, case, search=False)
    assert (trial.outcome, trial.batches, trial.restarts) == (Outcome.PASSED, 2, 1)


def test_a_job_that_drops_a_row_differs(spark: SparkSession, case: Case) -> None:
    trial = try_case(spark, case, lambda frame: frame.where("value <> '3, 12'"), search=False)
    assert trial.outcome is Outcome.DIFFERS
    assert trial.why.startswith("AssertionError")


def test_a_job_that_restarts_without_its_state_differs(
    spark: SparkSession, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_state(plan: JobPlan, point: RecoveryPoint) -> CheckpointState | None:
        manifest = point.manifest.model_copy(update={"spark_state": None})
        return checkpoint_state(plan, replace(point, manifest=manifest))

    monkeypatch.setattr(incarnation, "checkpoint_state", without_state)
    trial = try_case(spark, case, search=False)
    assert trial.outcome is Outcome.DIFFERS
    assert trial.why.startswith("AssertionError")
