"""The page about Spark's own tests shows the recorded results, and a cause for each test that differs."""

from __future__ import annotations

from dataclasses import replace

from integration_tests.sparks_suites.page import MARK, PAGE, cause, figures, read
from integration_tests.sparks_suites.trials import Outcome, Trial

TRIALS = list(read())


def test_the_page_shows_the_recorded_results() -> None:
    assert PAGE.read_text().partition(MARK)[2].strip() == figures(TRIALS).strip()


def test_each_test_has_one_result() -> None:
    names = [(trial.module, trial.suite, trial.test) for trial in TRIALS]
    assert sorted(set(names)) == sorted(names)


def test_each_difference_has_a_cause() -> None:
    assert [trial.test for trial in TRIALS if trial.outcome is Outcome.DIFFERS and not cause(trial)] == []


def test_a_test_that_starts_to_differ_changes_the_page_and_has_no_cause() -> None:
    passed = next(trial for trial in TRIALS if trial.outcome is Outcome.PASSED)
    differs = replace(passed, outcome=Outcome.DIFFERS, why="AssertionError: rows")
    assert cause(differs) == ""
    changed: list[Trial] = [differs if trial == passed else trial for trial in TRIALS]
    assert figures(changed) != figures(TRIALS)
