"""Contract between a protocol and its host: start, failure and recovery of processes.

Lifecycle of a process under any protocol over plain messages:

- The host makes the process's machine with `Protocol.worker(Birth)` and hands in `Commanded("start")`.
- A crash loses the machine and the application's state. Records that were `Stored` stay, and so do channels.
- A recovery is one new incarnation. `Protocol.plan(Failure)` uses the durable records and the survivors' reports. It
  decides which checkpoint each process goes back to.
- The host first makes the plan's row of the rollback table durable (the fence). Then it restores the processes one
  after another, in any order, each with a new `Birth`. If a process crashes in between, the next recovery begins.
- A survivor that keeps its state restarts from its current record, `MessageMachine.record()`. That record has the
  schema of a stored checkpoint, so every start takes the same path.

Rules G1 to G6 of the recovery literature hold for all protocols; see `docs/design/simulator.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import Epoch, Incarnation, ProcessId
from checkpoint_protocols.incarnation import Line, RollbackTable
from checkpoint_protocols.vocabulary import Envelope, Json

if TYPE_CHECKING:
    from checkpoint_protocols.message_machine import AnyMessageMachine

Key = tuple[str, ...]
"""Name of a durable record within its process; the first part is its table: `checkpoint`, `log`, `commit`, ..."""

Record = Mapping[str, Json]
"""One durable record: JSON."""

Records = Mapping[Key, Record]
"""All durable records of one process."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Assumptions of a protocol about its environment. The simulator provides exactly these and removes all others."""

    fifo: bool = True
    """A channel delivers in the order of sending."""
    reliable: bool = True
    """A channel neither loses nor duplicates. False: the machine repeats and deduplicates."""
    replayable: bool = False
    """A channel is a log: a restored process reads again from its checkpoint's position (Kafka)."""
    deterministic: bool = False
    """Between two receipts a process depends only on its state, so that replay repeats its sends."""
    acyclic: bool = False
    """No back edges."""


@dataclass(frozen=True, slots=True)
class Output:
    """Guarantees to the reader of a sink, in addition to this one: every row that the inputs demand, once."""

    keeps_order: bool = True
    """Rows that took the same path arrive in the order of their source. False: in the order in which the sink received them.
    """
    at_once: bool = False
    """A row is visible without a checkpoint, as soon as no work is pending. False: with the checkpoint that holds it.
    """

    @property
    def promise(self) -> str:
        """The guarantees as a sentence for people."""
        order = "in the order of their source" if self.keeps_order else "in the order in which it received them"
        when = "without waiting for a checkpoint" if self.at_once else "with the checkpoint that contains them"
        return f"each sink gets all rows once, {order}, {when}"


@dataclass(frozen=True, slots=True)
class Option:
    """Allowed values of one protocol option: one of `words`, or a whole number from 1 on if `words` is empty."""

    words: tuple[str, ...] = ()

    def read(self, written: str) -> Json:
        """Parse the written value. Raises `ValueError` that names the allowed values."""
        if not self.words and written.isdecimal() and int(written) > 0:
            return int(written)
        if written not in self.words:
            raise ValueError(f"not {' or '.join(self.words) or 'a whole number from 1 on'}")
        return written


@dataclass(frozen=True, slots=True)
class ProtocolSettings:
    """Settings of a user. `options` are the protocol's own."""

    interval_ms: int = 1_000
    """Time from one checkpoint to the next."""
    timeout_ms: int = 10_000
    """Time until an open checkpoint is aborted, or a message is sent again."""
    options: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Birth:
    """All facts that a machine receives at the begin of an incarnation.

    `checkpoint` is the record to start from: a stored one, or the current record of a survivor. None is the initial
    state, whose index is 0. `records` are the process's own durable records, without those of undone futures.
    """

    me: ProcessId
    graph: Graph
    incarnation: Incarnation
    table: RollbackTable
    settings: ProtocolSettings
    checkpoint: Record | None = None
    records: Records = field(default_factory=dict)
    shown: int = 0
    """Number of rows of this sink that are already visible: its own marker, which it writes with the rows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Input of a recovery. `incarnation` is the new one; `table` has the rows of all recoveries before it."""

    graph: Graph
    incarnation: Incarnation
    table: RollbackTable
    failed: frozenset[ProcessId]
    records: Mapping[ProcessId, Records]
    """Durable records of every process and of the coordinator, without those of undone futures."""
    survivors: Mapping[ProcessId, Record]
    """Current record of every surviving process, including the coordinator."""


@dataclass(frozen=True, slots=True)
class Part:
    """The share of one process in a recovery.

    `checkpoint` names the record to load. None keeps the current state (a survivor), or begins at the initial state (a
    failed process without a checkpoint). The host hands in `replay` before anything new, in this order.
    """

    checkpoint: Key | None
    replay: tuple[Envelope, ...] = ()
    initial: bool = False
    """Begin at the initial state although a current state exists."""
    because: str = ""
    """The failure or message that made this part necessary, for people."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """One decided recovery. `row` is the new row of the rollback table: the index from which on sends are undone."""

    incarnation: Incarnation
    row: Line
    parts: Mapping[ProcessId, Part]


Rejoin = Callable[[RecoveryPlan, Birth], Part]
"""A survivor's own decision about its part, at the news of the recovery. `Birth.checkpoint` is its current record."""


@dataclass(frozen=True)
class Protocol:
    """One entry of the menu. `name` is the name that users type; `source` says seed, paper and section."""

    name: str
    title: str
    source: str
    needs: Needs
    worker: Callable[[Birth], AnyMessageMachine]
    plan: Callable[[Failure], RecoveryPlan]
    coordinator: Callable[[Birth], AnyMessageMachine] | None = None
    rejoin: Rejoin | None = None
    """If set, survivors continue to work until they learn of a recovery. None: they stop at its begin."""
    sound: bool = True
    """False for a counter-example: the oracles must catch it."""
    maximal: bool = False
    """The plan's line is claimed to be the greatest possible; oracle O4 finds that line itself."""
    output: Output = Output()
    """Guarantees of its sinks."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """Options of a user in addition to times: names in `ProtocolSettings.options`."""


def checkpoint_key(index: int) -> Key:
    """Return the key of checkpoint `index`, the same in every protocol. It is zero-padded, so that keys sort as numbers."""
    return ("checkpoint", f"{index:012d}")


def checkpoints(records: Records) -> dict[Epoch, Record]:
    """Return a process's durable checkpoints by index, oldest first."""
    found = {Epoch(int(key[1])): record for key, record in records.items() if key[0] == "checkpoint"}
    # Plans take the last one as the newest.
    return dict(sorted(found.items()))
