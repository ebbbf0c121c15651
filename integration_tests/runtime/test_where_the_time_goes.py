"""Spark's own phases of a batch, as a run tells them."""

from __future__ import annotations

import time

import pytest
from runtime_kit import ENOUGH_S, Bench, totals

pytestmark = pytest.mark.spark
PHASES = {"latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution"}


def test_a_batch_has_sparks_phases_around_its_own_time(bench: Bench) -> None:
    bench.put(("a", 1))
    job = bench.job()
    totals(job.source("in", bench.source())).to(bench.sink(), name="out")
    run = job.start()
    run.savepoint("named", ENOUGH_S)
    deadline_s = time.monotonic() + ENOUGH_S
    while not (whole := [each for each in run.recentProgress if "triggerTimestamp" in each]):
        assert time.monotonic() < deadline_s, "no batch has phases"
        run.awaitTermination(0.05)
    assert run.stop(ENOUGH_S)

    took_ms = whole[0]["durationMs"]
    assert isinstance(took_ms, dict)
    assert took_ms.keys() >= PHASES | {"batch"}
    assert took_ms["batch"] <= took_ms["addBatch"] <= took_ms["triggerExecution"]
    parts = [took_ms[name] for name in ("fetch", "operator", "snapshot", "staging")]
    assert took_ms["batch"] / 2 < sum(parts) <= took_ms["batch"] + len(parts), (
        "rounded, and the action is most of the batch"
    )
    assert whole[0]["triggerTimestamp"] < whole[0]["timestamp"]
