"""Forced checkpoints in whole jobs: no checkpoint is useless, unless processes ignore the headers of messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import checkpoint_lab as sim
from checkpoint_lab.durable import StateCut
from checkpoint_lab.message_world import MessageWorld
from checkpoint_lab.oracles import orphans
from checkpoint_lab.schedules import Driver
from checkpoint_protocols.checkpoints.uncoordinated import PROTOCOL, Forcing, UncoordinatedWorker
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.recovery import Birth, Protocol, ProtocolSettings
from checkpoint_protocols.vocabulary import Json

HMNR = ProtocolSettings(options={"forcing": "hmnr"})
GRAPH = sim.GRAPHS["cycle"]


class LearnsNothing(UncoordinatedWorker):
    """Applies the rule and ignores the headers of messages."""

    def __init__(self, birth: Birth) -> None:
        super().__init__(birth)
        if self.forcing is not None:
            self.forcing = _Deaf(self.me, self.graph.processes, self.forcing.as_record())


class _Deaf(Forcing):
    def learn(self, header: Mapping[str, Json]) -> None:
        """Removed."""


def useless(protocol: Protocol, seed: int) -> list[tuple[ProcessId, int]]:
    """Checkpoints of a run without failures that belong to no consistent line."""
    world = MessageWorld(protocol, GRAPH, sim.NO_FAULTS, inputs=3, settings=HMNR)
    driver = Driver(world, seed, fault_rate=0.0, timer_rate=0.3)
    driver.chaos(90)
    cuts = {
        process.name: {0: world.initial, **process.captures, -1: process.state.cut()}
        for process in world.everybody
        if process.name in world.graph.processes
    }
    return [
        (name, index)
        for name, own in cuts.items()
        for index in own
        if index > 0 and _greatest(cuts, name, index)[name] is not own[index]
    ]


def _greatest(
    cuts: Mapping[ProcessId, Mapping[int, StateCut]], name: ProcessId, index: int
) -> dict[ProcessId, StateCut]:
    """The greatest consistent line with the process at that checkpoint or before: receivers of orphans roll back."""
    left = {each: list(own.values()) for each, own in cuts.items()}
    left[name] = left[name][: list(cuts[name]).index(index) + 1]
    while True:
        line = {each: own[-1] for each, own in left.items()}
        bad = orphans(line)
        if not bad:
            return line
        for own in left.values():
            while own[-1].received & bad:
                own.pop()


def test_no_checkpoint_of_a_job_is_useless() -> None:
    assert [seed for seed in range(150) if useless(PROTOCOL, seed)] == []


def test_a_process_that_ignores_headers_takes_useless_checkpoints() -> None:
    deaf = replace(PROTOCOL, worker=LearnsNothing)

    assert any(useless(deaf, seed) for seed in range(150))
