"""A job as its host core sees it: names and bounds, no connections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from checkpoint_protocols import barrier
from checkpoint_protocols.ids import Epoch, Incarnation, SinkId, TaskId


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """Where a sink's rows are staged. `recorded_root`: as the manifest has it, empty for the store's outbox. `publish_every_ms`: at
    least so long from one publish to the next; 0: every epoch is one. `sends_ahead`: it can be
    sent rows before their epoch is decided, and is to be."""

    root: str
    storage_options: Mapping[str, str] = field(default_factory=dict)
    recorded_root: str = ""
    publish_every_ms: int = 0
    sends_ahead: bool = False

    @property
    def is_sent_ahead(self) -> bool:
        """Whether it is. What is held back for a later publish has no transaction to go into."""
        return self.sends_ahead and not self.publish_every_ms


@dataclass(frozen=True, slots=True)
class OperatorShape:
    """A keyed operator: its name in the store, its schemas as DDL, its number of key groups. `delays_ms`: how late rows may be, by
    input, if that has event time."""

    name: str
    key_schema: str
    state_schema: str
    key_groups: int
    delays_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EdgeShape:
    """An edge: its name in the store, its rows' schema as DDL."""

    name: str
    schema: str


@dataclass(frozen=True, slots=True)
class JobShape:
    """What an incarnation's rules need to know of its job.

    `operators`: each behind those that it reads from.
    `sinks`: in the order in which they are declared; rows out are counted at the first one. `store`: its URI, for messages.
    `every_batch`: each batch that has done something ends an epoch. `ack_wait_ms`: for how long an acknowledgement waits for an
    epoch that carries it into the log.
    """

    job: str
    sources: tuple[str, ...]
    sinks: Mapping[str, SinkPlace]
    operators: tuple[OperatorShape, ...]
    limits: barrier.Limits
    edges: tuple[EdgeShape, ...] = ()
    store: str = ""
    every_batch: bool = False
    ack_wait_ms: int = 10_000

    @property
    def delays_ms(self) -> dict[tuple[str, str], int]:
        """How late rows may be, by operator and input."""
        return {(each.name, name): ms for each in self.operators for name, ms in each.delays_ms.items()}

    def source_tasks(self) -> list[TaskId]:
        """The sources as tasks: their cursors are snapshots."""
        return [TaskId(f"source/{name}") for name in self.sources]

    def group_tasks(self, groups: Iterable[tuple[str, int]]) -> list[TaskId]:
        """Key groups as tasks; a group is its operator's name and its number."""
        return [TaskId(f"{operator}/{group}") for operator, group in sorted(groups)]

    def coordinator(
        self, incarnation: Incarnation, last_epoch: Epoch, unpublished: Mapping[SinkId, list[Epoch]]
    ) -> barrier.Coordinator:
        """The machine of one incarnation. `last_epoch`: the highest epoch ever decided."""
        groups = self.group_tasks((each.name, group) for each in self.operators for group in range(each.key_groups))
        topology = barrier.Topology(frozenset([*self.source_tasks(), *groups]), frozenset(map(SinkId, self.sinks)))
        return barrier.Coordinator(topology, incarnation, last_epoch, self.limits, unpublished)
