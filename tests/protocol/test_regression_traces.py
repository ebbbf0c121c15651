"""T4 on the shipped barrier machines: a source takes its snapshot on Nil; by the literal rule it never does (E4)."""

from __future__ import annotations

import pytest

from checkpoint_lab.barrier_storage import PIPELINE
from checkpoint_lab.barrier_world import BarrierWorld, Roles
from tests.protocol.literal.barrier import LiteralNil
from tests.protocol.test_barrier_scenarios import settle


@pytest.mark.parametrize(("roles", "snapshots"), [({}, 3), ({"operator": LiteralNil}, 0)], ids=["ours", "literal"])
def test_a_source_snapshots_on_nil_and_the_literal_rule_never_does(roles: Roles, snapshots: int) -> None:
    world = BarrierWorld(PIPELINE, roles)

    settle(world)

    assert len(world.durable.snapshots) == snapshots
