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
from checkpoint_protocols.machine import Effect
from checkpoint_protocols.recovery import Birth, Protocol, ProtocolSettings, Record
from checkpoint_protocols.vocabulary import Commanded, Json

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


class TakesWaitingMessagesUnjudged(UncoordinatedWorker):
    """Rule G4: a recovery may undo the send of the message that a forced checkpoint keeps."""

    def _on_start(self, event: Commanded) -> list[Effect]:
        waiting, self._waiting = self._waiting, []
        return [*super()._on_start(event), *(effect for each in waiting for effect in self._on_received(each))]


class KeepsNoMessage(UncoordinatedWorker):
    """A forced checkpoint without the message that it precedes."""

    def record(self) -> Record:
        return {**super().record(), "waiting": []}


CRASHES = sim.Faults(crashes=5, store_errors=0, torn=0, pauses=0, partitions=0)
OFTEN = replace(HMNR, interval_ms=400)


def verdicts(worker: type[UncoordinatedWorker]) -> list[str]:
    """Complaints about schedules with crashes and many forced checkpoints."""
    protocol = replace(PROTOCOL, worker=worker)
    worlds = (MessageWorld(protocol, GRAPH, CRASHES, 4, settings=OFTEN) for _ in range(12))
    outcomes = [sim.drive(world, seed, 120, 0.1) for seed, world in enumerate(worlds)]
    return [str(outcome.error) for outcome in outcomes if outcome.condemned]


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


def test_a_message_that_a_forced_checkpoint_keeps_is_delivered_once_and_judged_again() -> None:
    assert verdicts(UncoordinatedWorker) == []
    unjudged = {each[:2] for each in verdicts(TakesWaitingMessagesUnjudged)}
    assert unjudged
    assert unjudged <= {"O1", "O9"}
    assert "the channel is in order, and" in verdicts(KeepsNoMessage)[0]


def test_no_checkpoint_of_a_job_is_useless() -> None:
    assert [seed for seed in range(150) if useless(PROTOCOL, seed)] == []


def test_a_process_that_ignores_headers_takes_useless_checkpoints() -> None:
    deaf = replace(PROTOCOL, worker=LearnsNothing)

    assert any(useless(deaf, seed) for seed in range(150))
