"""A table that gets the rows of several epochs in one commit has each row once, after a stop at any point."""

from __future__ import annotations

from contextlib import suppress

import pytest
from deltalake import DeltaTable
from runtime_kit import Bench, drain, totals

import spark_ckpt as ckpt
from spark_ckpt import failpoints
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.store.store import Store

pytestmark = pytest.mark.spark

FILES = 8


def job(bench: Bench, publish_every: str) -> ckpt.Job:
    made = bench.job(interval="every batch", keep_epochs=1000)
    totals(made.source("in", bench.source())).to(bench.sink(), name="out", publish_every=publish_every)
    return made


def epochs(bench: Bench) -> list[Manifest]:
    log = Store.open(str(bench.folder / "store"), "job").log
    return [log.manifest(brief.epoch) for brief in log.state().epochs]


@pytest.mark.long  # in the gate: tests/simulator/test_spark_holding.py
def test_deferred_rows_survive_a_failure_and_are_published_in_one_commit(bench: Bench) -> None:
    for value in range(FILES):
        bench.put(("a", value))
    failpoints.arm("EPOCH_COMMITTED:raise:4")
    try:
        with suppress(ckpt.CkptError, failpoints.FailpointHit):
            drain(job(bench, "1 hour"))
    finally:
        failpoints.arm("")
    drain(job(bench, "1 hour"))

    decided = epochs(bench)
    held = [each for each in decided if any(output.rows for output in each.held.values())]
    assert len(held) >= 3, "epochs with deferred rows"
    totals_in_turn = [sum(range(value + 1)) for value in range(FILES)]
    assert sorted(total for _, total in bench.values()) == totals_in_turn
    commits = DeltaTable(str(bench.folder / "out")).version()
    assert commits + len(held) <= len(decided) + 1, "an epoch that defers its rows makes no commit"


def test_a_duration_that_is_none_is_refused_when_the_job_is_made(bench: Bench) -> None:
    with pytest.raises(ConfigInvalid, match="publish_every of sink 'out'"):
        job(bench, "now and then")
