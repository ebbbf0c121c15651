"""The page's data about a job, as JSON: the log's state for the overview, one manifest for the details of an epoch.

An overview reads the newest manifest only, so that ten thousand epochs take as long as ten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from spark_ckpt.connector import Json
from spark_ckpt.cursor_text import cursor_text
from spark_ckpt.epochs.epoch_status import statuses
from spark_ckpt.epochs.log_state import IncarnationEntry, LogState
from spark_ckpt.epochs.records import EdgeCut, EpochBrief, Manifest, OperatorSnapshot, StagedOutput
from spark_ckpt.errors import CkptError
from spark_ckpt.json_values import plain
from spark_ckpt.observability.page.health import health_of
from spark_ckpt.store.holder import runs
from spark_ckpt.store.standbys import StandbyNote, Standbys
from spark_ckpt.store.store import Store

COLUMNS = (
    "epoch", "status", "incarnation", "base", "created_ms", "duration_ms", "barrier_ms", "snapshot_ms", "decision_ms",
    "publish_ms", "rows_in", "rows_out", "state_bytes", "reason", "savepoints", "batch",
)  # fmt: skip
"""Columns of an epoch in the overview. Null means that it was not measured."""

Facts = dict[str, Json]


def facts_of(store: Store, now_ms: int) -> Facts:
    """Return the overview of one job or outbox. `now_ms`: Unix time in ms. Damage of the newest manifest is part of the
    result.
    """
    log_state = store.log.state()
    standbys = [_standby(note) for note in Standbys(store.location).waiting()]
    runs_now = runs(log_state, now_ms)
    kept = Counter(brief.incarnation for brief in log_state.by_id.values())
    return {
        "job": log_state.job,
        "kind": log_state.kind,
        "store": store.location.uri,
        "store_id": log_state.store_id,
        "taken_ms": now_ms,
        "latest": log_state.latest,
        "driver": driver_of(log_state, now_ms),
        "standbys": standbys,
        "health": health_of(log_state, statuses(log_state, now_ms, runs_now), now_ms, runs_now, len(standbys)),
        "savepoints": dict(log_state.savepoints),
        "acked": dict(log_state.acked),
        "incarnations": [
            _incarnation(each, log_state, now_ms, kept[each.incarnation]) for each in log_state.incarnations
        ],
        "columns": list(COLUMNS),
        "epochs": [list(row) for row in rows_of(log_state, now_ms)],
        "newest": _newest(store, log_state),
    }


def driver_of(log_state: LogState, now_ms: int) -> Json:
    """Return the driver that runs the job; null if there never was one."""
    if log_state.holder is None:
        return None
    return {
        "holder": str(log_state.holder),
        "since_ms": log_state.since_ms,
        "lease_ms": log_state.lease_ms,
        "lease_until_ms": log_state.lease_expires_ms or None,
        "holds_lease": runs(log_state, now_ms),
    }


def _standby(note: StandbyNote) -> Json:
    return {
        "holder": str(note.holder),
        "waits_since_ms": note.waits_since_ms,
        "told_ms": note.told_ms,
        "epoch": note.epoch or None,
        "warm": note.warm,
    }


def _incarnation(told: IncarnationEntry, log_state: LogState, now_ms: int, kept: int) -> Json:
    return {
        "incarnation": told.incarnation,
        "began_ms": told.began_ms,
        "base": told.base,
        "restored_from": told.restored_from,
        "holder": told.holder,
        "ended_ms": told.ended_ms or None,
        "ended": how_it_ended(told, log_state, now_ms),
        "epochs": kept,
    }


def how_it_ended(told: IncarnationEntry, log_state: LogState, now_ms: int) -> str:
    """Return in words how an incarnation ended.

    A killed driver writes nothing: its lease or the next incarnation shows that it is gone.
    """
    if told.ended_ms:
        return told.why or "in order; its lease was freed"
    if told.incarnation < log_state.incarnation:
        return f"without a word, before incarnation {told.incarnation + 1} began: killed, lost, or replaced"
    if log_state.kind == "outbox":
        return "runs, or waits" if runs(log_state, now_ms) else "its process is gone"
    return "runs" if runs(log_state, now_ms) else "without a word: its lease is over"


def rows_of(log_state: LogState, now_ms: int) -> Iterable[tuple[Json, ...]]:
    """Yield one row for each epoch, oldest first, with the fields of `COLUMNS`. `now_ms`: Unix time in ms."""
    status = statuses(log_state, now_ms, runs(log_state, now_ms))
    later = _acknowledged_later(log_state.by_id.values())
    names: dict[int, list[str]] = {}
    for name, epoch in sorted(log_state.savepoints.items()):
        names.setdefault(epoch, []).append(name)
    for brief in log_state.epochs:
        barrier_ms, snapshot_ms = (
            (brief.timings.barrier_ms, brief.timings.snapshot_ms) if brief.timings else (None, None)
        )
        yield (
            brief.epoch, status[brief.epoch],
            brief.incarnation, brief.base, brief.created_ms, brief.duration_ms,
            # `later`: known once the manifest was written.
            barrier_ms, snapshot_ms, later.get((brief.epoch, "decision")), later.get((brief.epoch, "publish")),
            brief.rows_in, brief.rows_out, brief.state_bytes, brief.reason, names.get(brief.epoch, []),
            None if brief.spark_batch is None else brief.spark_batch.number,
        )  # fmt: skip


def _acknowledged_later(briefs: Iterable[EpochBrief]) -> dict[tuple[int, str], int]:
    """Return milliseconds by epoch and part, as later epochs record them."""
    found: dict[tuple[int, str], int] = {}
    for brief in briefs:
        for each in brief.timings.earlier if brief.timings else ():
            # Sinks publish in parallel, so the slowest one counts.
            found[each.epoch, each.part] = max(each.duration_ms, found.get((each.epoch, each.part), 0))
    return found


def _newest(store: Store, log_state: LogState) -> Json:
    if not log_state.latest:
        return None
    try:
        return _closely(store.log.manifest(log_state.latest), log_state)
    except CkptError as error:
        return {"epoch": log_state.latest, "damage": str(error)}


def epoch_of(store: Store, epoch: int) -> Facts:
    """Return the details of one epoch. Raises `EpochNotFound`, `EpochDamaged`, `FormatUnknown`."""
    return _closely(store.log.manifest(epoch), store.log.state())


def _closely(manifest: Manifest, log_state: LogState) -> Facts:
    return {
        "epoch": manifest.epoch,
        "watermark_ms": manifest.watermark_ms or None,
        "sources": [_source(name, cursor, manifest) for name, cursor in manifest.cursors.items()],
        "operators": [_operator(each) for each in manifest.operators.values()],
        "edges": [_edge(each) for each in manifest.edges.values()],
        "sinks": [_sink(each, log_state, manifest) for each in (*manifest.outputs.values(), *manifest.held.values())],
        "rejected": sum(manifest.rejected.values()),
        "graph": [{"id": each.id, "inputs": list(each.inputs)} for each in manifest.graph],
    }


def _source(name: str, cursor: Mapping[str, Json], manifest: Manifest) -> Json:
    lag = manifest.timings.lag_rows.get(name) if manifest.timings else None
    return {
        "name": name,
        "cursor": plain(cursor),
        "position": cursor_text(cursor),
        "identity": dict(manifest.source_identities.get(name, {})),
        "lag": lag,
    }


def _operator(snapshot: OperatorSnapshot) -> Json:
    newest = max((file.epoch for file in snapshot.files), default=0)
    return {
        "name": snapshot.operator,
        "key_groups": snapshot.key_groups,
        "key_schema": snapshot.key_schema,
        "state_schema": snapshot.state_schema,
        "files": len(snapshot.files),
        "bytes": sum(file.size_bytes for file in snapshot.files),
        # An epoch that changed nothing of the operator names older files only.
        "rows_changed": sum(file.rows for file in snapshot.files if file.epoch == newest),
        "late_rows": snapshot.late_rows,
        "watermarks_ms": dict(snapshot.watermarks),
    }


def _edge(cut: EdgeCut) -> Json:
    size = sum(file.size_bytes for file in cut.files)
    return {"name": cut.edge, "consumed": cut.consumed, "produced": cut.produced, "bytes": size}


def _sink(output: StagedOutput, log_state: LogState, manifest: Manifest) -> Json:
    identity = manifest.sink_identities.get(output.sink)
    return {
        "name": output.sink,
        "rows": output.rows,
        "files": len(output.files),
        "bytes": sum(file.size_bytes for file in output.files),
        "published": output.sink in manifest.outputs and manifest.epoch not in log_state.unacked(output.sink),
        "held": output.sink in manifest.held,
        "identity": dict(identity.parts) if identity else {},
    }
