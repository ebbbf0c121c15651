"""What the traces of the message world have in common: how a schedule is drawn, what is begun, decided and on its way, and
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
    """A world whose snapshots are numbered without gaps, as the specifications number them; complete ones are not judged."""

    def __init__(self, protocol: Protocol, graph: Graph, faults: Faults, rows: int) -> None:
        super().__init__(protocol, graph, faults, rows)
        self.audits = []
        self.begun: list[int] = []
        """Ids that are durable. An id may be left out, here."""

    def ordinal(self, number: int) -> int:
        """How many epochs or snapshots were begun up to this one."""
        return sum(each <= number for each in self.begun)

    def decided(self) -> int:
        """The newest decided epoch or snapshot, as storage has it; 0 if there is none."""
        commits = [int(key[1]) for key in self.processes[COORDINATOR].storage.readable() if key[0] == "commit"]
        return max(commits, default=0)


class OnceAround(GraphApplication):
    """The head keeps what comes back, as in the specification."""

    @cached_property
    def routes(self) -> dict[str, Outputs]:
        """Records that end at the head for the second time, and what leads to them."""
        return {
            lineage: () if lineage.count("a") == 2 else outputs
            for lineage, outputs in super().routes.items()
            if lineage.count("a") < 2 or lineage.endswith("a")
        }


class Numbered(Counted):
    """Rows that go around a loop once, with two crashes; only the periodic timer runs out."""

    def __init__(self, protocol: Protocol, graph: Graph, rows: int) -> None:
        super().__init__(protocol, graph, Faults(2, 0, 0, 0, 0, 0, 0), rows)
        self.app = OnceAround(graph, rows)

    def timers(self) -> list[Choice]:
        """The beginnings of epochs or snapshots."""
        return [choice for choice in super().timers() if choosing.is_periodic(self, choice)]


def drawn(driver: Driver, steps: int, at_once: tuple[str, ...] = ()) -> Iterator[Choice]:
    """The choices of a schedule, for whoever makes them; those of the kinds `at_once` come before all others."""
    for _ in range(steps):
        urgent = [choice for choice in driver.world.choices() if choice[0] in at_once] if at_once else []
        choice = driver.pick(urgent) if urgent else driver.next_choice()
        if choice is None:
            return
        yield choice


def counts(message: Envelope, world: MessageWorld) -> bool:
    """It is of this life, or a row of an earlier one that nothing has undone."""
    if message.incarnation == world.incarnation or message.kind != APP:
        return message.incarnation == world.incarnation
    judged = age(message.source, message.incarnation, Epoch(message.index), world.incarnation, world.table)
    return judged is not Age.UNDONE


def have_of(app: GraphApplication, masks: Mapping[str, int]) -> str:
    """Per task: from whom, and the row's number."""
    taken = {name: [row.split(">") for row in app.names(mask)] for name, mask in masks.items()}
    pairs = {name: [(ways[-2][:1], ways[0]) for ways in rows if len(ways) > 1] for name, rows in taken.items()}
    return record(
        {name: set_of(f'<<"{sender}", {number_of(row)}>>' for sender, row in each) for name, each in pairs.items()}
    )


def number_of(record: object) -> int:
    """1 for the first row of the source."""
    return int(str(record).partition(">")[0].partition(".")[2]) + 1
