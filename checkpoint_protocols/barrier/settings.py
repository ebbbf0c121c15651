"""Participants of aligned barriers, and bounds on every wait and every backlog."""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint_protocols.ids import SinkId, TaskId
from checkpoint_protocols.machine import ProtocolViolation


@dataclass(frozen=True, slots=True)
class Topology:
    """Participants of every epoch. A source's cursor is a snapshot too, so at least one task exists.

    Raises `ProtocolViolation` without a task.
    """

    tasks: frozenset[TaskId]
    sinks: frozenset[SinkId]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ProtocolViolation(
                "a topology needs a task: without one an epoch would be complete before its barrier"
            )


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on waits and backlogs.

    `interval_ms`: from one barrier to the next. `epoch_timeout_ms`: from the barrier until all acknowledgements and
    votes are in. `store_timeout_ms`: for the log's answer. `publish_timeout_ms`: for the sinks after the final epoch.
    `retry_ms`: pause after an aborted epoch and between attempts to publish. `max_failed_epochs`: aborts in a row that
    the run survives. `max_unpublished`: committed epochs that one sink may leave unpublished before barriers are
    delayed. `max_publish_attempts`: per epoch and sink. `max_in_flight`: open epochs at once; this protocol supports
    1.

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

    def __post_init__(self) -> None:
        if self.max_in_flight != 1:
            raise ProtocolViolation(f"aligned barriers take one epoch at a time, not {self.max_in_flight}")
        if (
            min(
                self.interval_ms,
                self.epoch_timeout_ms,
                self.store_timeout_ms,
                self.publish_timeout_ms,
                self.retry_ms,
            )
            < 1
        ):
            raise ProtocolViolation(f"times are at least 1 ms: {self}")
        if min(self.max_failed_epochs, self.max_unpublished - 1, self.max_publish_attempts - 1) < 0:
            raise ProtocolViolation(f"a bound is too small: {self}")
