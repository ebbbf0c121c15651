"""The benchmark of metrics judges one percent only if its noise is low enough to see it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.inside import metrics


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([0.001, 0.003, 0.002], "yes"),
        ([0.021, 0.023, 0.022], "no"),
        ([-0.03, 0.04, 0.005], "cannot be seen"),
        ([0.001], "cannot be seen"),
    ],
)
def test_one_percent_is_judged_only_if_it_could_be_seen(parts: list[float], expected: str) -> None:
    assert metrics.verdict(parts).startswith(expected)


def test_a_run_is_compared_with_its_neighbours() -> None:
    assert metrics.lost(10.1, 9.0, 11.0) == pytest.approx(0.01)


def test_cpu_time_is_that_of_the_whole_session() -> None:
    # Its own session: processes of this one may end between the two readings, and their CPU time would be lost.
    program = """
from benchmarks.inside.metrics import used_s
before_s = used_s()
sum(range(10_000_000))
assert used_s() > before_s
"""
    subprocess.run([sys.executable, "-c", program], check=True, start_new_session=True)
