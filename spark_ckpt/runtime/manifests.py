"""From an ended epoch to the manifest that decides it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from spark_ckpt.connector import Json
from spark_ckpt.runtime.epoch_builder import EndedEpoch
from spark_ckpt.store.identity import Standing
from spark_ckpt.store.records import (
    Manifest,
    OperatorSnapshot,
    Reason,
    SinkAck,
    StagedFileRecord,
    StagedOutput,
)

if TYPE_CHECKING:
    from spark_ckpt.runtime.job_plan import JobPlan


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a new epoch stands: who decides it, on which epoch, after which id; when its barrier was offered.

    `standing`: which tables, topics and folders its names mean.
    """

    incarnation: int
    base: int
    previous: int
    barrier_at_s: float
    key_groups: int
    standing: Standing = field(default_factory=Standing)


def manifest_of(
    plan: JobPlan, ended: EndedEpoch, lineage: Lineage, reason: Reason, acks: Sequence[SinkAck]
) -> Manifest:
    """Everything the epoch consists of."""
    gathered = ended.gathered
    return Manifest(
        job=plan.job,
        epoch=ended.epoch,
        incarnation=lineage.incarnation,
        attempt=uuid.uuid4().hex,
        base=lineage.base,
        previous=lineage.previous,
        created_ms=time.time_ns() // 1_000_000,
        duration_ms=round((time.monotonic() - lineage.barrier_at_s) * 1000),
        reason=reason,
        cursors=json.loads(json.dumps(ended.cursors)),
        watermark_ms=ended.watermark_ms,
        late_watermark_ms=ended.late_ms,
        operators=_operators(plan, ended, lineage.key_groups),
        outputs=_outputs(plan, ended),
        rows_in=gathered.rows_in,
        rows_out=gathered.rows_out,
        rejected={"parse": gathered.rejected} if gathered.rejected else {},
        acks=tuple(acks),
        source_identities={name: dict(parts) for name, parts in lineage.standing.sources.items()},
        sink_identities=dict(lineage.standing.sinks),
    )


def _operators(plan: JobPlan, ended: EndedEpoch, key_groups: int) -> dict[str, OperatorSnapshot]:
    node = plan.operator
    if node is None:
        return {}
    files = tuple(file for group in sorted(ended.chains) for file in ended.chains[group])
    snapshot = OperatorSnapshot(
        operator=node.name,
        key_groups=key_groups,
        key_schema=node.key_ddl,
        state_schema=node.state_ddl,
        files=files,
    )
    return {node.name: snapshot}


def _outputs(plan: JobPlan, ended: EndedEpoch) -> dict[str, StagedOutput]:
    outputs = {}
    for binding in plan.bindings:
        files = tuple(StagedFileRecord(**asdict(file)) for file in ended.gathered.staged.get(binding.name, []))
        root = plan.stage_plan(binding.name).root or ""
        outputs[binding.name] = StagedOutput(
            sink=binding.name, root=root, files=files, rows=sum(file.rows for file in files)
        )
    return outputs


def summary_of(manifest: Manifest) -> dict[str, Json]:
    """An epoch in a few numbers, for listeners, logs and tables."""
    changed = [file for each in manifest.operators.values() for file in each.files if file.epoch == manifest.epoch]
    return {
        "reason": manifest.reason,
        "rows_in": manifest.rows_in,
        "rows_out": manifest.rows_out,
        "duration_ms": manifest.duration_ms,
        "state_rows_changed": sum(file.rows for file in changed),
        "state_bytes_written": sum(file.size_bytes for file in changed),
        "rejected": sum(manifest.rejected.values()),
    }
