"""The job under test with a bug in it: its driver decides and publishes epochs without a look at who holds the lease."""

from __future__ import annotations

import sys

import spark_ckpt.store.epoch_log as epoch_log
from integration_tests.survival.driver import main
from spark_ckpt.driver.lanes import Lanes
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.log_state import LogState
from spark_ckpt.store.log_table import NewRow
from spark_ckpt.store.records import EpochBrief, Manifest


def _looks_at_nothing(*_: object) -> None:
    """Instead of the comparison with the log's newest incarnation."""


def _row_whatever_the_log_holds(log: EpochLog, log_state: LogState, manifest: Manifest) -> NewRow:
    """Instead of a row that extends the log's newest epoch."""
    brief = EpochBrief.of(manifest, log_state.lease_expires_ms)
    told = brief.model_dump_json(), manifest.model_dump_json()
    return NewRow("epoch", manifest.epoch, manifest.incarnation, manifest.attempt, *told)


if __name__ == "__main__":
    epoch_log._fence = _looks_at_nothing
    EpochLog._epoch_row = _row_whatever_the_log_holds  # type: ignore[method-assign]
    Lanes._still_current = _looks_at_nothing  # type: ignore[method-assign]
    sys.exit(main())
