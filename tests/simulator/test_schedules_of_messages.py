"""Random schedules over the message world: a sound protocol passes, the oracles' errors carry their traces."""

from __future__ import annotations

import pytest

import checkpoint_lab as sim
from tests.simulator import markers


@pytest.mark.parametrize("name", sim.GRAPHS)
def test_a_sound_protocol_survives_every_schedule(name: str) -> None:
    for seed in range(40):
        outcome = sim.run(markers.protocol(), sim.GRAPHS[name], seed)

        assert outcome.ok, f"seed {seed}: {outcome.error}"
