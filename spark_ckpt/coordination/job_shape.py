"""Description of a job for the protocol rules: names and limits, no connections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from checkpoint_protocols.ids import Epoch, Incarnation, SinkId, TaskId
from spark_ckpt.coordination.coordinator import Coordinator, Limits, Topology


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """Location of a sink's staged rows, and the time of its publishes.

    `recorded_root`: the root as the manifest records it, empty for the store. `publish_every_ms`: minimum
    time between two publishes; 0: every epoch is published. `sends_ahead`: the sink supports early sends and the job
    enables them.
    """

    root: str
    storage_options: Mapping[str, str] = field(default_factory=dict)
    recorded_root: str = ""
    publish_every_ms: int = 0
    sends_ahead: bool = False

    @property
    def is_sent_ahead(self) -> bool:
        """True if the sink gets early sends. Deferred rows have no open transaction to enter, so `publish_every_ms`
        excludes it.
        """
        return self.sends_ahead and not self.publish_every_ms


@dataclass(frozen=True, slots=True)
class OperatorShape:
    """A keyed operator: its name in the store, its schemas as DDL, its number of key groups.

    `delays_ms`: allowed lateness in milliseconds, by input with event time.
    """

    name: str
    key_schema: str
    state_schema: str
    key_groups: int
    delays_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EdgeShape:
    """An edge: its name in the store, and the schema of its rows as DDL."""

    name: str
    schema: str


@dataclass(frozen=True, slots=True)
class JobShape:
    """A job as the rules of an incarnation need it.

    `operators`: in topological order. `sinks`: in order of declaration; output rows are counted at the first one.
    `store`: URI of the store, for messages. `every_batch`: each batch that is not idle ends an epoch. `ack_wait_ms`:
    how long an acknowledgement waits for an epoch that carries it into the log.
    """

    job: str
    sources: tuple[str, ...]
    sinks: Mapping[str, SinkPlace]
    operators: tuple[OperatorShape, ...]
    limits: Limits
    edges: tuple[EdgeShape, ...] = ()
    store: str = ""
    every_batch: bool = False
    ack_wait_ms: int = 10_000

    @property
    def delays_ms(self) -> dict[tuple[str, str], int]:
        """Allowed lateness in milliseconds, by operator and input."""
        return {(each.name, name): ms for each in self.operators for name, ms in each.delays_ms.items()}

    def source_tasks(self) -> list[TaskId]:
        """Return the sources as tasks; their cursors are snapshots."""
        return [TaskId(f"source/{name}") for name in self.sources]

    def group_tasks(self, groups: Iterable[tuple[str, int]]) -> list[TaskId]:
        """Return key groups as tasks; a group is the name of its operator and its number."""
        return [TaskId(f"{operator}/{group}") for operator, group in sorted(groups)]

    def coordinator(
        self, incarnation: Incarnation, last_epoch: Epoch, unpublished: Mapping[SinkId, list[Epoch]]
    ) -> Coordinator:
        """Return the machine of one incarnation.

        `last_epoch`: the highest epoch ever committed. `unpublished`: committed epochs that each sink has not
        published, oldest first.
        """
        groups = self.group_tasks((each.name, group) for each in self.operators for group in range(each.key_groups))
        topology = Topology(frozenset([*self.source_tasks(), *groups]), frozenset(map(SinkId, self.sinks)))
        return Coordinator(topology, incarnation, last_epoch, self.limits, unpublished)
