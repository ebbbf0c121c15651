"""A driver leases maintenance through the log to a standby of any speed: it is sound, and bugs are condemned."""

from __future__ import annotations

from collections import Counter

import pytest

import checkpoint_lab as sim
from spark_ckpt.store.maintenance_lease import MaintenanceLog
from tests.simulator.leased_rows import PLANTED, LeasedRowsWorld

STEPS, UNTIL_CAUGHT = 40, 60


def test_a_quick_standby_fences_no_driver_and_every_lease_is_one_row() -> None:
    happened: Counter[str] = Counter()
    for seed in range(60):
        outcome = sim.drive(LeasedRowsWorld(), seed, STEPS)
        assert outcome.ok, f"seed {seed}: {outcome.error}"
        happened.update(outcome.counts)
    assert happened["ended early"] > 60, happened
    assert min(happened["outage"], happened["replace"]) > 4, happened


@pytest.mark.parametrize(("rows_of", "oracle"), PLANTED, ids=lambda each: getattr(each, "__name__", each))
def test_a_planted_bug_is_condemned(rows_of: type[MaintenanceLog], oracle: str) -> None:
    outcomes = (sim.drive(LeasedRowsWorld(rows_of), seed, STEPS) for seed in range(UNTIL_CAUGHT))
    first = next((outcome.error for outcome in outcomes if outcome.condemned), None)
    assert str(first).startswith(oracle), first
