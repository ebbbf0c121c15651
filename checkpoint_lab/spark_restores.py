"""Oracle of restores: an older epoch has all its files, and the job that continues from it reaches the same end.

The rules and the log are the shipped ones, on a copy of the durable state. Nothing fails there, and sinks accept all rows.
"""

from __future__ import annotations

from checkpoint_lab.spark_driver import CoreOf, SparkDriver
from checkpoint_lab.spark_store import Shared
from checkpoint_lab.violations import ensure
from spark_ckpt.connector import EpochOutput
from spark_ckpt.coordination.messages import Outcome, PublishEnded
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.restore import choose
from spark_ckpt.errors import CkptError

STEPS_MAX = 2_000
BATCH = (5, 9)
"""Rows of each source and segments of each edge in one batch."""


def judge_restores(durable: Shared, core_of: CoreOf, rows: int) -> None:
    """O12: every kept epoch can be restored.

    O3, O10: the job continues correctly from the epoch with most rows in flight.
    """
    log = durable.log()
    log_state = log.state()
    kept = [log.manifest(brief.epoch) for brief in log_state.epochs]
    for manifest in kept:
        try:
            choose(log_state, manifest.epoch, log.manifest, durable.verify)
        except CkptError as error:
            ensure(False, "O12", f"epoch {manifest.epoch} cannot be restored: {error}")
    continue_from(durable, core_of, max(kept, key=_rows_in_flight).epoch, rows)


def continue_from(durable: Shared, core_of: CoreOf, epoch: int, rows: int) -> None:
    """Restore the epoch and drain the sources. Every commit on the way is judged as usual."""
    driver = SparkDriver(durable.copy(), core_of, epoch)
    for _ in range(STEPS_MAX):
        if driver.ending is not None:
            break
        _step(driver, rows)
    ending = driver.ending
    ensure(ending is not None and ending.outcome is Outcome.STOPPED, "O10", f"from epoch {epoch}: {ending}")
    base = driver.core.cut.base
    whole = all(cursor["n"] == rows for cursor in base.cursors.values()) and not _rows_in_flight(base)
    ensure(
        whole, "O3", f"from epoch {epoch} the job ends with {base.cursors} and {_rows_in_flight(base)} rows in flight"
    )


def _step(driver: SparkDriver, rows: int) -> None:
    query = driver.query
    due = [lane for lane in driver.lanes.values() if lane.waiting]
    if due:
        output = due[0].waiting.popleft()
        assert isinstance(output, EpochOutput)  # noqa: S101 - this job sends nothing ahead
        driver.inbox.append(PublishEnded(due[0].sink, output.epoch, sum(file.rows for file in output.files)))
    elif driver.busy:
        driver.step(True)
    elif query is not None and query.planned is not None:
        driver.run_batch("once", rows)
    elif query is not None and query.news(rows):
        query.plan(rows, *BATCH)
    elif driver.timers:
        driver.run_out(0)


def _rows_in_flight(manifest: Manifest) -> int:
    return sum(cut.produced - cut.consumed for cut in manifest.edges.values())
