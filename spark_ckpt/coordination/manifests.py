"""Build the manifest that commits a closed epoch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_ckpt.connector import Json
from spark_ckpt.coordination.cut import EndedEpoch, distinct
from spark_ckpt.coordination.job_shape import JobShape, OperatorShape
from spark_ckpt.coordination.publication import DeferredRows
from spark_ckpt.epochs.identity import Parts, Standing
from spark_ckpt.epochs.records import (
    GraphNode,
    Manifest,
    OperatorSnapshot,
    Reason,
    SinkAck,
    SparkState,
    StagedOutput,
    Timings,
)


@dataclass(frozen=True, slots=True)
class Lineage:
    """Position of a new epoch in the log.

    `incarnation`: commits the epoch. `base`: the epoch it builds on. `previous`: the highest epoch ever committed.
    `took_ms`: milliseconds since its barrier was offered. `deferred`: deferred rows. `standing`: endpoints of sources
    and sinks. `rows_before`: see `Manifest`.
    """

    incarnation: int
    base: int
    previous: int
    now_ms: float
    took_ms: int
    deferred: DeferredRows
    standing: Standing
    rows_before: Mapping[str, int] = field(default_factory=dict)


def manifest_of(
    shape: JobShape, ended: EndedEpoch, lineage: Lineage, reason: Reason, acks: Sequence[SinkAck]
) -> Manifest:
    """Return the manifest with the epoch's whole content.

    `attempt` and `created_ms` stay empty: the host sets them when it appends the manifest (`stamped`).
    """
    # Step 6 of docs/design/epoch-in-nine-steps.md.
    gathered = ended.gathered
    outputs, held = lineage.deferred.divided(_staged(shape, ended), reason, lineage.now_ms)
    return Manifest(
        job=shape.job,
        epoch=ended.epoch,
        incarnation=lineage.incarnation,
        attempt="",
        base=lineage.base,
        previous=lineage.previous,
        created_ms=0,
        duration_ms=lineage.took_ms,
        reason=reason,
        # A JSON round trip: the manifest gets the same values that a restart will read.
        cursors=json.loads(json.dumps(ended.cursors)),
        watermark_ms=ended.watermark_ms,
        late_watermark_ms=ended.late_ms,
        operators=_operators(shape, ended),
        outputs=outputs,
        held=held,
        edges=dict(ended.edges),
        rows_in=gathered.rows_in,
        rows_out=gathered.rows_out,
        rejected={"parse": gathered.rejected} if gathered.rejected else {},
        acks=tuple(acks),
        source_identities={name: dict(parts) for name, parts in lineage.standing.sources.items()},
        sink_identities=dict(lineage.standing.sinks),
        rows_before=dict(lineage.rows_before),
    )


def pinned_of(shape: JobShape, ended: EndedEpoch, lineage: Lineage, base: Manifest) -> Manifest:
    """Return the manifest of an epoch before the first batch; it reuses the state files and their schemas from
    `base`.
    """
    manifest = manifest_of(shape, ended, lineage, "initial", ())
    operators = {name: _as_written(each, base.operators.get(name)) for name, each in manifest.operators.items()}
    # No batch has run, so the state of Spark's own operators is still that of the base.
    return manifest.model_copy(update={"operators": operators, "spark_state": base.spark_state})


def _as_written(snapshot: OperatorSnapshot, base: OperatorSnapshot | None) -> OperatorSnapshot:
    # The schema is the one that the files were written in. No task has rewritten them before the first batch.
    return snapshot if base is None else snapshot.model_copy(update={"state_schema": base.state_schema})


def stamped(manifest: Manifest, attempt: str, created_ms: int) -> Manifest:
    """Return the manifest as it is appended: with the random id of this attempt and the time in milliseconds."""
    return manifest.model_copy(update={"attempt": attempt, "created_ms": created_ms})


def identified(manifest: Manifest, sources: Mapping[str, Parts]) -> Manifest:
    """Return the manifest with the sources' endpoints, read after the epoch's last batch."""
    return manifest.model_copy(update={"source_identities": {name: dict(parts) for name, parts in sources.items()}})


def with_spark_state(manifest: Manifest, state: SparkState) -> Manifest:
    """Return the manifest with the state of Spark's own operators, captured after the epoch's last batch."""
    return manifest.model_copy(update={"spark_state": state})


def measured(manifest: Manifest, timings: Timings, graph: tuple[GraphNode, ...]) -> Manifest:
    """Return the manifest with durations and the job's graph, for observability only."""
    return manifest.model_copy(update={"timings": timings, "graph": graph})


def _operators(shape: JobShape, ended: EndedEpoch) -> dict[str, OperatorSnapshot]:
    return {operator.name: snapshot_of(operator, ended) for operator in shape.operators}


def snapshot_of(operator: OperatorShape, ended: EndedEpoch) -> OperatorSnapshot:
    """Return an operator's part of the manifest."""
    chains = (chain for (name, _), chain in ended.chains.items() if name == operator.name)
    return OperatorSnapshot(
        operator=operator.name,
        key_groups=operator.key_groups,
        key_schema=operator.key_schema,
        state_schema=operator.state_schema,
        files=tuple(distinct(file for chain in chains for file in chain)),  # once: key groups of a task share a file
        watermarks=dict(ended.watermarks.get(operator.name, {})),
        late_rows=ended.gathered.late.get(operator.name, 0),
    )


SPARK_OPERATORS = "spark operators"
"""Name of the state of Spark's own operators among those of the job. No operator of a job may have a blank."""


def state_bytes_of(manifest: Manifest) -> dict[str, int]:
    """Return the size of the state in bytes by operator."""
    sizes = {name: sum(file.size_bytes for file in each.files) for name, each in manifest.operators.items()}
    return sizes if manifest.spark_state is None else {**sizes, SPARK_OPERATORS: manifest.spark_state.state_bytes}


def _staged(shape: JobShape, ended: EndedEpoch) -> dict[str, StagedOutput]:
    staged = {}
    # An output also without rows, since a sink acknowledges every epoch that is not deferred.
    for sink, place in shape.sinks.items():
        files = tuple(ended.gathered.staged.get(sink, ()))
        rows = sum(file.rows for file in files)
        replaces = sink in ended.gathered.replaced
        staged[sink] = StagedOutput(sink=sink, root=place.recorded_root, files=files, rows=rows, replaces=replaces)
    return staged


def summary_of(manifest: Manifest) -> dict[str, Json]:
    """Return an epoch in a few numbers, for listeners, logs and tables."""
    # A chain also has files of earlier epochs, which this one only names again.
    changed = [file for each in manifest.operators.values() for file in each.files if file.epoch == manifest.epoch]
    return {
        "reason": manifest.reason,
        "rows_in": manifest.rows_in,
        "rows_out": manifest.rows_out,
        "duration_ms": manifest.duration_ms,
        "state_rows_changed": sum(file.rows for file in changed),
        "state_bytes_written": sum(file.size_bytes for file in changed),
        "rejected": sum(manifest.rejected.values()),
        "state_bytes": state_bytes_of(manifest),
        "sinks": list(manifest.outputs),
    }
