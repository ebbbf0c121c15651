"""Description of a job for the epoch protocol: names and limits, no connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpoint_protocols.machine import ProtocolViolation


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on waits and backlogs.

    `interval_ms`: from one barrier to the next. `epoch_timeout_ms`: from the barrier until the snapshots of all key
    groups are durable. `store_timeout_ms`: for the log's answer. `publish_timeout_ms`: for the sinks after the final epoch.
    `retry_ms`: pause after an aborted epoch and between attempts to publish. `max_failed_epochs`: aborts in a row that
    the run survives. `max_unpublished`: committed epochs that one sink may leave unpublished before barriers are
    delayed. `max_publish_attempts`: per epoch and sink. `max_in_flight`: open epochs at once; this protocol supports
    1. `full_after_files`: files of changes before key groups write full snapshots. `standby_interval_ms`: from
    one barrier to the next while a standby waits, if that is shorter; None: no difference.

    Raises `ProtocolViolation` if `max_in_flight` is not 1, a time is below 1 ms, or a bound is too small.
    """

    interval_ms: int = 10_000
    epoch_timeout_ms: int = 600_000
    store_timeout_ms: int = 600_000
    publish_timeout_ms: int = 600_000
    retry_ms: int = 1_000
    max_failed_epochs: int = 3
    max_unpublished: int = 4
    max_publish_attempts: int = 10
    max_in_flight: int = 1
    full_after_files: int = 8
    standby_interval_ms: int | None = None

    def __post_init__(self) -> None:
        if self.max_in_flight != 1:
            raise ProtocolViolation(f"aligned barriers take one epoch at a time, not {self.max_in_flight}")
        if (
            min(
                self.interval_ms,
                1 if self.standby_interval_ms is None else self.standby_interval_ms,
                self.epoch_timeout_ms,
                self.store_timeout_ms,
                self.publish_timeout_ms,
                self.retry_ms,
            )
            < 1
        ):
            raise ProtocolViolation(f"times are at least 1 ms: {self}")
        # No failure at all may be allowed; every other bound is at least 1.
        if (
            min(
                self.max_failed_epochs,
                self.full_after_files - 1,
                self.max_unpublished - 1,
                self.max_publish_attempts - 1,
            )
            < 0
        ):
            raise ProtocolViolation(f"a bound is too small: {self}")


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """Location of a sink's staged rows, and the time of its publishes.

    `recorded_root`: the root as the manifest records it, empty for the store. `publish_every_ms`: minimum
    time between two publishes; 0: every epoch is published. `sends_early`: the sink supports early sends and the job
    enables them. `replaces`: the rows of a batch are the sink's whole content (output mode "complete").
    """

    root: str
    storage_options: Mapping[str, str] = field(default_factory=dict)
    recorded_root: str = ""
    publish_every_ms: int = 0
    sends_early: bool = False
    replaces: bool = False

    @property
    def is_sent_early(self) -> bool:
        """True if the sink gets early sends. Deferred rows have no open transaction to enter, so `publish_every_ms`
        excludes it. Rows of a batch that the next batch replaces are never sent.
        """
        return self.sends_early and not self.publish_every_ms and not self.replaces


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
    """A job as the epoch protocol needs it.

    `operators`: in topological order. `sinks`: in order of declaration; output rows are counted at the first one.
    `store`: URI of the store, for messages. `every_batch`: each batch that is not idle ends an epoch. `ack_wait_ms`:
    how long an acknowledgement waits for an epoch that carries it into the log; the time between two renewals of the
    lease, because the row that records it renews the lease as well. `awaits_lines`: sinks publish released epochs only.
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
    awaits_lines: bool = False

    @property
    def delays_ms(self) -> dict[tuple[str, str], int]:
        """Allowed lateness in milliseconds, by operator and input."""
        return {(each.name, name): ms for each in self.operators for name, ms in each.delays_ms.items()}

    @property
    def replaced(self) -> frozenset[str]:
        """Sinks of which each batch has the whole content."""
        return frozenset(name for name, place in self.sinks.items() if place.replaces)

    @property
    def key_groups(self) -> frozenset[tuple[str, int]]:
        """All key groups: the name of the operator, and the group's number. Each takes part in every epoch."""
        return frozenset((each.name, group) for each in self.operators for group in range(each.key_groups))
