"""The coordinator's machine for one incarnation of a job: who takes part, what bounds its waits, what it owes the sinks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spark_ckpt.protocol import barrier
from spark_ckpt.protocol.ids import Epoch, Incarnation, SinkId, TaskId

if TYPE_CHECKING:
    from spark_ckpt.config import JobConfig
    from spark_ckpt.runtime.job_plan import JobPlan
    from spark_ckpt.store.restore import RecoveryPoint


def source_tasks(plan: JobPlan) -> list[str]:
    """The sources as tasks: their cursors are snapshots."""
    return [f"source/{node.name}" for node in plan.sources]


def group_tasks(plan: JobPlan, groups: Iterable[int]) -> list[str]:
    """Key groups of the operator as tasks."""
    return [f"{plan.operator_name}/{group}" for group in sorted(groups)]


def coordinator_of(plan: JobPlan, point: RecoveryPoint, key_groups: int, last_epoch: int) -> barrier.Coordinator:
    """The machine. `last_epoch`: the highest epoch ever decided."""
    tasks = source_tasks(plan) + (group_tasks(plan, range(key_groups)) if plan.operator is not None else [])
    sinks = frozenset(SinkId(binding.name) for binding in plan.bindings)
    topology = barrier.Topology(frozenset(map(TaskId, tasks)), sinks)
    due = {SinkId(sink): [Epoch(each.epoch) for each in manifests] for sink, manifests in point.unpublished.items()}
    return barrier.Coordinator(topology, Incarnation(point.incarnation), Epoch(last_epoch), _limits(plan.config), due)


def _limits(config: JobConfig) -> barrier.Limits:
    return barrier.Limits(
        interval_ms=max(1, config.interval_ms),
        epoch_timeout_ms=max(1, config.timeout_ms),
        publish_timeout_ms=max(1, config.publish_timeout_ms),
        max_failed_epochs=config.max_failed_epochs,
        max_unpublished=config.max_unpublished,
        max_publish_attempts=max(1, config.publish_timeout_ms // 1000),
    )
