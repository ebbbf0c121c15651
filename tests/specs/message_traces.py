"""Common parts of the traces of the message world: schedules, begun and committed epochs, messages on the way, and
rows that go around a loop once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from checkpoint_lab import choosing
from checkpoint_lab.faults import Faults
from checkpoint_lab.message_world import MessageWorld
from checkpoint_lab.process import GraphApplication, Outputs
from checkpoint_lab.schedules import Driver
from checkpoint_lab.world import Choice
from checkpoint_protocols.graph import COORDINATOR, Graph
from checkpoint_protocols.ids import Epoch
from checkpoint_protocols.incarnation import Age, age
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Protocol
from checkpoint_protocols.vocabulary import Envelope
from tests.specs.tla import record, set_of


class Counted(MessageWorld):
    """A world that numbers its snapshots without gaps, as the specifications do, and does not judge complete ones."""

    def __init__(self, protocol: Protocol, graph: Graph, faults: Faults, rows: int) -> None:
        super().__init__(protocol, graph, faults, rows)
        self.audits = []
        self.begun: list[int] = []
        """Return the durable ids; an id may be missing here."""

    def ordinal(self, number: int) -> int:
        """Return the number of epochs or snapshots begun up to this one."""
        return sum(each <= number for each in self.begun)

    def decided(self) -> int:
        """Return the newest committed epoch or snapshot in storage; 0 if there is none."""
        commits = [int(key[1]) for key in self.processes[COORDINATOR].storage.readable() if key[0] == "commit"]
        return max(commits, default=0)


class OnceAround(GraphApplication):
    """A head that keeps returned rows, as in the specification."""

    @cached_property
    def routes(self) -> dict[str, Outputs]:
        """Return the records that reach the head for the second time, and their ancestors."""
        return {
            lineage: () if lineage.count("a") == 2 else outputs
            for lineage, outputs in super().routes.items()
            if lineage.count("a") < 2 or lineage.endswith("a")
        }


class Numbered(Counted):
    """Rows that go around a loop once, with two crashes; only the periodic timer expires."""

    def __init__(self, protocol: Protocol, graph: Graph, rows: int) -> None:
        super().__init__(protocol, graph, Faults(2, 0, 0, 0, 0, 0, 0), rows)
        self.app = OnceAround(graph, rows)

    def timers(self) -> list[Choice]:
        """Return the starts of epochs or snapshots."""
        return [choice for choice in super().timers() if choosing.is_periodic(self, choice)]


def drawn(driver: Driver, steps: int, at_once: tuple[str, ...] = ()) -> Iterator[Choice]:
    """Yield the choices of a schedule; those of the kinds `at_once` come before all others."""
    for _ in range(steps):
        urgent = [choice for choice in driver.world.choices() if choice[0] in at_once] if at_once else []
        choice = driver.pick(urgent) if urgent else driver.next_choice()
        if choice is None:
            return
        yield choice


def counts(message: Envelope, world: MessageWorld) -> bool:
    """Return True for a message of this incarnation, or a row of an earlier one that is not undone."""
    if message.incarnation == world.incarnation or message.kind != APP:
        return message.incarnation == world.incarnation
    judged = age(message.source, message.incarnation, Epoch(message.index), world.incarnation, world.table)
    return judged is not Age.UNDONE


def have_of(app: GraphApplication, masks: Mapping[str, int]) -> str:
    """Return the sender and number of each row, by task."""
    taken = {name: [row.split(">") for row in app.names(mask)] for name, mask in masks.items()}
    pairs = {name: [(ways[-2][:1], ways[0]) for ways in rows if len(ways) > 1] for name, rows in taken.items()}
    return record(
        {name: set_of(f'<<"{sender}", {number_of(row)}>>' for sender, row in each) for name, each in pairs.items()}
    )


def number_of(record: object) -> int:
    """Return 1 for the first row of the source."""
    return int(str(record).partition(">")[0].partition(".")[2]) + 1
