"""Small scopes, all of them: every interleaving of a tiny job, and in each of its states every possible
fault.

States are compared without histories, so that each is visited once.  From every state, also after a fault, the
world is driven on calmly and must reach the effect of a run without failures.
"""

from __future__ import annotations

import pytest

from checkpoint_lab.barrier_storage import LINE, MERGE, BarrierGraph
from checkpoint_lab.barrier_world import BarrierWorld
from checkpoint_lab.explore import explore
from checkpoint_lab.violations import Violation
from tests.protocol.test_planted_bugs import SinksAreEnough


@pytest.mark.parametrize(("graph", "states"), [(LINE, 302), (MERGE, 3_089)], ids=["line", "merge"])
def test_every_interleaving_of_one_epoch_ends_well(graph: BarrierGraph, states: int) -> None:
    """The number of states is part of the test: fewer would mean that something became impossible."""
    explored = explore(BarrierWorld(graph, faults_max=0))

    assert explored.states == states
    assert explored.ends > 0


@pytest.mark.long
def test_every_single_fault_in_every_state_is_survived() -> None:
    explored = explore(BarrierWorld(LINE, faults_max=1))

    assert explored.states > 10_000


def test_exploration_finds_a_planted_bug() -> None:
    with pytest.raises(Violation, match="O7") as found:
        explore(BarrierWorld(MERGE, {"coordinator": SinksAreEnough}, faults_max=0))

    assert found.value.trace
