"""Sinks of a stage publish released epochs only, and all of them in the end."""

from __future__ import annotations

from collections import Counter

import pytest

import checkpoint_lab as sim
from checkpoint_lab.violations import TooEarly
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.coordination.publication import Publication

SCHEDULES = 60


def with_publication(**methods):
    """The shipped rules with a planted bug in the state of the sinks."""

    def core_of(shape, point, acked, standing):
        core = EpochProtocol(shape, point, standing, acked)
        core.publication = type("Wrong", (Publication,), methods)(shape, point, standing, acked)
        return core

    return core_of


@pytest.mark.parametrize("schedules", [SCHEDULES, pytest.param(20 * SCHEDULES, marks=pytest.mark.long)])
def test_sinks_publish_released_epochs_in_every_schedule(schedules: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(schedules):
        found = sim.run_spark(seed, awaits_lines=True)
        assert found.error is None, f"seed {seed}: {found.error}"
        happened.update(choice[0] for choice in found.trace)
    assert happened["release"] > schedules
    assert happened["begin"] > schedules


def test_a_sink_that_publishes_at_once_is_caught() -> None:
    found = [
        sim.run_spark(seed, with_publication(may_publish=lambda self, epoch: True), awaits_lines=True).error
        for seed in range(20)
    ]
    assert any(isinstance(error, TooEarly) for error in found)
