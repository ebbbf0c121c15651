"""The store of an outbox as the store of the job that its query becomes.

Markers in sinks name the store, the sink and the epoch. So a job in the same store, whose sinks have the same names,
continues them: no row is published twice, and none is lost. The outbox's epochs stay in the log, below the job's first.
"""

from __future__ import annotations

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import SparkBatch
from spark_ckpt.epochs.restore import ADOPTING
from spark_ckpt.errors import AdoptionRefused
from spark_ckpt.store.store import Store
from spark_ckpt.wording import epochs
from spark_rewind.adopt.unfinished import FINISH
from spark_rewind.checkpoint import Batch, QueryCheckpoint


def is_outbox(log_state: LogState) -> bool:
    """Return true for the log of an outbox, also while an adoption that died has changed its owner."""
    newest = log_state.by_id.get(log_state.latest)
    of_query = newest is not None and newest.spark_batch is not None
    adopting = log_state.holder is not None and log_state.holder.name == ADOPTING and not log_state.is_free
    return log_state.kind == "outbox" or (of_query and adopting)


def given_back(store: Store) -> None:
    """Make the outbox the owner again, after an adoption that died."""
    log_state = store.log.state()
    if log_state.kind == "job":
        # Its epochs still name the outbox.
        store.log.change_owner(log_state.incarnation, store.log.manifest(log_state.latest).job, "outbox")


def published(log_state: LogState, checkpoint: QueryCheckpoint) -> bool | None:
    """Return true if the outbox has published the unfinished batch of its query; None without an unfinished batch.

    Raises `AdoptionRefused` for another query's outbox, for a log and a checkpoint that end with different batches, and
    for a sink that may lack rows.
    """
    newest = log_state.by_id.get(log_state.latest)
    known = newest.spark_batch if newest is not None else None
    if known is None or known.query != checkpoint.query:
        whose = "has committed no batch" if known is None else f"belongs to query {known.query}"
        raise AdoptionRefused(
            f"outbox '{log_state.job}' {whose}, and the checkpoint is of query {checkpoint.query}",
            hint="name the store of this query's own outbox, or an empty folder; nothing was changed",
        )
    if late := {sink: found for sink in log_state.sinks if (found := log_state.unsettled(sink))}:
        said = ", ".join(f"{sink} {epochs(found)}" for sink, found in late.items())
        raise AdoptionRefused(
            f"sinks of outbox '{log_state.job}' are not known to have: {said}", hint=f"{FINISH}; nothing was changed"
        )
    open_, batches = checkpoint.unfinished, checkpoint.batches
    # The log ends with the newest batch. If Spark has not committed that one, its rows are published all the same.
    if batches and _is(known, batches[-1]):
        return None if open_ is None else True
    if open_ is not None and len(batches) > 1 and _is(known, batches[-2]):
        return False
    ends = batches[-1].number if batches else None
    raise AdoptionRefused(
        f"outbox '{log_state.job}' ends with batch {known.number}, and its query with batch {ends}, or they differ in its offsets",
        hint="start the plain query once more: it continues, or its error names the way back; nothing was changed",
    )


def _is(known: SparkBatch, batch: Batch) -> bool:
    return (known.number, known.offsets) == (batch.number, batch.offsets_sha256)
