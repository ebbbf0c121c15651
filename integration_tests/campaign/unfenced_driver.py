"""The job under test with a planted bug: its driver commits and publishes epochs without a check of the lease."""

from __future__ import annotations

import sys

from integration_tests.survival.driver import main
from spark_ckpt.driver.lanes import Lanes
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief, Manifest
from spark_ckpt.store import proposals
from spark_ckpt.store.log_table import NewRow


def _looks_at_nothing(*_: object) -> None:
    """Replaces the comparison with the log's newest incarnation."""


def _row_whatever_the_log_holds(log_state: LogState, manifest: Manifest, now_ms: int) -> NewRow:
    """Replaces the check that a row extends the log's newest epoch."""
    brief = EpochBrief.of(manifest, now_ms + log_state.lease_ms)
    row = brief.model_dump_json(), manifest.model_dump_json()
    return NewRow("epoch", manifest.epoch, manifest.incarnation, manifest.attempt, *row)


if __name__ == "__main__":
    proposals.fence = _looks_at_nothing
    proposals.epoch = _row_whatever_the_log_holds
    Lanes.still_current = _looks_at_nothing  # type: ignore[method-assign]
    sys.exit(main())
