"""Surroundings with one planted bug each, in the parts that protect the machines from faults."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from checkpoint_lab import Faults, MessageWorld, ScheduleOutcome
from checkpoint_lab.durable import CONTRACT, Surroundings
from checkpoint_lab.message_world import DEFAULT
from checkpoint_lab.process import Process
from checkpoint_protocols.ids import Incarnation
from checkpoint_protocols.machine import Effect
from checkpoint_protocols.menu import MENU
from checkpoint_protocols.recovery import Key
from checkpoint_protocols.transport import Transport
from checkpoint_protocols.vocabulary import Received, TimerElapsed
from checkpoint_protocols.writer_fence import Acknowledgements, WriterFence
from tests.protocol.audited import graph_in_turn
from tests.simulator.eager import drive_long, long_world


class HandsInAgain(Transport):
    """Forgets received numbers."""

    def _on_received(self, event: Received) -> list[Effect]:
        self.heard.clear()
        return super()._on_received(event)


class NeverRepeats(Transport):
    """Sends every message once."""

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        return []


class BelievesItIsHeard(Transport):
    """Takes any acknowledgement for one of all messages."""

    def _acknowledged(self, event: Received) -> list[Effect]:
        effects = super()._acknowledged(event)
        self.said.clear()
        self.phase = self.PHASES.QUIET  # type: ignore[attr-defined]
        return effects


class NoFence(WriterFence):
    """Admits every incarnation."""

    def admits(self, incarnation: Incarnation) -> bool:
        return True


class FencedAtTheNextRecovery(WriterFence):
    """Fences one recovery too late."""

    def admits(self, incarnation: Incarnation) -> bool:
        return incarnation >= self.newest - 1


class TakesWhatIsThere(Acknowledgements):
    """A reader that ignores acknowledged records that are missing."""

    def missing(self, whole: Collection[Key]) -> list[Key]:
        return []


class NobodyStops(MessageWorld):
    """Survivors continue to work between the decision and their restore."""

    def _fence(self, process: Process, failed: bool) -> None:
        super()._fence(process, failed)
        if not failed:
            process.frozen = False


REPEATED = Faults(2, 0, 0, 0, 0, 0, 0, control_repeats=9)
LOST = Faults(control_losses=6)
LATE = Faults(6, 0, 0, 0, 0, 0, 0, late=20, suspicions=3)
LATE_WRITES = Faults(8, 0, 0, 0, 0, 0, 0, late=20)
CRASHES = Faults(crashes=6)
FORGETFUL = Surroundings(transport=HandsInAgain)
SILENT = Surroundings(transport=NeverRepeats)
GULLIBLE = Surroundings(transport=BelievesItIsHeard)
BARE = Surroundings(transport=None)
OPEN = Surroundings(fence=NoFence)
DAMAGED = Faults(6, 0, 0, 0, 0, 0, 0, damages=6)
UNAWARE = Surroundings(acknowledgements=TakesWhatIsThere)
TARDY = Surroundings(fence=FencedAtTheNextRecovery)


@dataclass(frozen=True)
class Planted:
    """A protocol of the menu in wrong surroundings."""

    protocol: str
    faults: Faults
    surroundings: Surroundings = CONTRACT
    world: type[MessageWorld] = MessageWorld

    def run(self, seed: int) -> ScheduleOutcome:
        """One schedule with the bug."""
        return self._run(seed, self.world, self.surroundings)

    def run_without(self, seed: int) -> ScheduleOutcome:
        """The same schedule without the bug."""
        return self._run(seed, MessageWorld, CONTRACT)

    def _run(self, seed: int, make: type[MessageWorld], surroundings: Surroundings) -> ScheduleOutcome:
        protocol = MENU[self.protocol]
        graph = graph_in_turn(protocol, seed)
        return drive_long(long_world(protocol, graph, self.faults, 4, DEFAULT, surroundings, make), seed, 150, 0.3)


PLANTED: Mapping[str, Planted] = {
    "coordinated without a memory of what was heard": Planted("coordinated", REPEATED, FORGETFUL),
    "uncoordinated without a memory of what was heard": Planted("uncoordinated", REPEATED, FORGETFUL),
    "epochs without a memory of what was heard": Planted("epochs", REPEATED, FORGETFUL),
    "uncoordinated over bare lines that lose": Planted("uncoordinated", LOST, BARE),
    "coordinated over bare lines that lose": Planted("coordinated", LOST, BARE),
    "uncoordinated, nothing is said again": Planted("uncoordinated", LOST, SILENT),
    "asynchronous-logging, nothing is said again": Planted("asynchronous-logging", LOST, SILENT),
    "uncoordinated, one acknowledgement for all": Planted("uncoordinated", LOST, GULLIBLE),
    "synchronous-logging, stores without a fence": Planted("synchronous-logging", LATE_WRITES, OPEN),
    "markers, sinks without a fence": Planted("markers", LATE, OPEN),
    "epochs, zombies that erase": Planted("epochs", LATE, OPEN),
    "uncoordinated, stores without a fence": Planted("uncoordinated", LATE, OPEN),
    "markers, fenced one recovery late": Planted("markers", LATE, TARDY),
    "markers, readers that do not know what was acknowledged": Planted("markers", DAMAGED, UNAWARE),
    "coordinated, readers that do not know what was acknowledged": Planted("coordinated", DAMAGED, UNAWARE),
    "synchronous-logging, readers that do not know what was acknowledged": Planted(
        "synchronous-logging", DAMAGED, UNAWARE
    ),
    "epochs, nobody stops for a recovery": Planted("epochs", CRASHES, world=NobodyStops),
    "coordinated, nobody stops for a recovery": Planted("coordinated", CRASHES, world=NobodyStops),
}
