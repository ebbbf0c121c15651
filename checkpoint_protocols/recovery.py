"""What a protocol gives a host, and what a host gives a protocol, to start, fail and recover.

The life of a process under any protocol over plain messages:

- The host makes its machine with `Protocol.worker(Birth)` and hands in `Commanded("start")`.
- A crash takes the machine and the application's state. What was `Stored` stays, and so do channels.
- A recovery is one new incarnation. `Protocol.plan(Failure)` decides, from what is durable and from what
  survivors report, which checkpoint each process goes back to. The host makes the plan's row of the rollback
  table durable first (the fence), then restores the processes one after another, in any order, each by a new
  `Birth`; a process may crash again in between, which begins the next recovery.
- A survivor that keeps its state is reborn from a record of its own *now*: `MessageMachine.record()`, which has
  the schema of a stored checkpoint. So there is one way to start, and no second one to forget something in.

Rules G1 to G6 of the recovery literature hold for all; see `docs/design/simulator.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import Epoch, Incarnation, ProcessId
from checkpoint_protocols.incarnation import Line, RollbackTable
from checkpoint_protocols.vocabulary import Envelope, Json, SinkOp

if TYPE_CHECKING:
    from checkpoint_protocols.message_machine import AnyMessageMachine

Key = tuple[str, ...]
"""Name of a durable record within its process; the first part is its table: `checkpoint`, `log`, `commit`, ..."""

Record = Mapping[str, Json]
"""One durable record: JSON."""

Records = Mapping[Key, Record]
"""Everything durable of one process."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a protocol assumes of its surroundings. The simulator gives exactly this, and takes the rest away."""

    fifo: bool = True
    """A channel delivers in the order of sending."""
    reliable: bool = True
    """A channel neither loses nor duplicates. False: the machine repeats and deduplicates."""
    replayable: bool = False
    """A channel is a log: whoever goes back reads again from where the checkpoint stood (Kafka)."""
    deterministic: bool = False
    """Between two receipts a process does what its state says, so that replay repeats its sends."""
    acyclic: bool = False
    """No back edges."""


@dataclass(frozen=True, slots=True)
class Output:
    """What whoever reads a sink may count on: every row that the inputs demand, once, and this."""

    keeps_order: bool = True
    """Rows that went the same way come in the order of their source. False: in the order in which the sink took them."""
    at_once: bool = False
    """A row is shown without a checkpoint, as soon as nothing is under way. False: with the checkpoint that holds it."""

    @property
    def promise(self) -> str:
        """For people."""
        order = "in the order of its source" if self.keeps_order else "in the order in which its sink took it in"
        when = "without a checkpoint" if self.at_once else "with the checkpoint that holds it"
        return f"every row once, {order}, {when}"


@dataclass(frozen=True, slots=True)
class Option:
    """What an option of a protocol may be: one of `words`, or without any a whole number from 1 on."""

    words: tuple[str, ...] = ()

    def read(self, written: str) -> Json:
        """The value. Raises `ValueError`, which says what is possible."""
        if not self.words and written.isdecimal() and int(written) > 0:
            return int(written)
        if written not in self.words:
            raise ValueError(f"not {' or '.join(self.words) or 'a whole number from 1 on'}")
        return written


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may set. `options` are the protocol's own."""

    interval_ms: int = 1_000
    """From one checkpoint to the next."""
    timeout_ms: int = 10_000
    """Until an open checkpoint is given up, or a message is sent again."""
    options: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Birth:
    """Everything a machine may know when an incarnation begins.

    `checkpoint` is the record to start from: stored, or of now for a survivor; None is the initial state,
    whose index is 0.  `records` are the process's own durable ones, without those of undone futures.
    """

    me: ProcessId
    graph: Graph
    incarnation: Incarnation
    table: RollbackTable
    settings: Settings
    checkpoint: Record | None = None
    records: Records = field(default_factory=dict)
    shown: int = 0
    """Rows that the world has of this sink: its own marker, which it writes with the rows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a recovery has to go by. `incarnation` is the new one, `table` has the rows of all before it."""

    graph: Graph
    incarnation: Incarnation
    table: RollbackTable
    failed: frozenset[ProcessId]
    records: Mapping[ProcessId, Records]
    """Durable records, of every process and of the coordinator, without those of undone futures."""
    survivors: Mapping[ProcessId, Record]
    """The record of now of everybody who lives, the coordinator too."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one process does in a recovery.

    `checkpoint` names the record to load; None keeps the state of now (a survivor) or begins at the initial
    state (a failed process that has none).  `replay` is handed in before anything new, in this order.
    """

    checkpoint: Key | None
    replay: tuple[Envelope, ...] = ()
    initial: bool = False
    """Begin at the initial state although there is a now."""
    because: str = ""
    """For people: which failure or message made this necessary."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One recovery, decided. `row` is the new row of the rollback table: from which index on sends are undone."""

    incarnation: Incarnation
    row: Line
    parts: Mapping[ProcessId, Part]
    transactions: Mapping[str, SinkOp] = field(default_factory=dict)
    """Verdict for every sink transaction in doubt."""


Rejoin = Callable[[Plan, Birth], Part]
"""A survivor's part, decided by itself when it hears of the recovery; `Birth.checkpoint` is its now."""


@dataclass(frozen=True)
class Protocol:
    """One entry of the menu. `name` is what users type; `source` says seed, paper and section."""

    name: str
    title: str
    source: str
    needs: Needs
    worker: Callable[[Birth], AnyMessageMachine]
    plan: Callable[[Failure], Plan]
    coordinator: Callable[[Birth], AnyMessageMachine] | None = None
    rejoin: Rejoin | None = None
    """Given: survivors go on working until they hear of a recovery. None: they stop when it begins."""
    sound: bool = True
    """False for a counter-example: the oracles must catch it."""
    maximal: bool = False
    """The plan's line is claimed to be the best there is (oracle O4 tries them all)."""
    output: Output = Output()
    """What its sinks promise."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """What a user may set beside times: names in `Settings.options`."""


def checkpoint_key(index: int) -> Key:
    """The name every protocol gives the checkpoint `index` of a process. Zero-padded: keys sort as numbers."""
    return ("checkpoint", f"{index:012d}")


def checkpoints(records: Records) -> dict[Epoch, Record]:
    """A process's durable checkpoints by index, oldest first."""
    found = {Epoch(int(key[1])): record for key, record in records.items() if key[0] == "checkpoint"}
    return dict(sorted(found.items()))
