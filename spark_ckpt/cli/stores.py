"""Opens an existing store without the name of its job."""

from __future__ import annotations

from collections.abc import Sequence

from spark_ckpt.cli.options import pairs
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief
from spark_ckpt.errors import EpochNotFound
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.store import Store


def open_store(uri: str, storage_options: Sequence[str] | None = None) -> Store:
    """Return the store at `uri`; creates nothing. Raises `StoreForeign` (also if there is none), or a `StoreOutage`."""
    return existing_store(uri, pairs(storage_options, "--storage-option"))


def chosen_epoch(log_state: LogState, epoch: int | None, savepoint: str | None = None) -> int:
    """Return the epoch that the options name, by default the newest of the current branch. Raises `EpochNotFound`."""
    if savepoint is not None:
        if savepoint not in log_state.savepoints:
            known = ", ".join(sorted(log_state.savepoints)) or "none"
            raise EpochNotFound(f"there is no savepoint '{savepoint}'", savepoints=known, hint="choose one of these")
        return log_state.savepoints[savepoint]
    if epoch is not None:
        return epoch
    if not log_state.latest:
        raise EpochNotFound("the job has no epoch yet", job=log_state.job, hint="start the job; it takes the first one")
    return log_state.latest


def status_of(log_state: LogState, brief: EpochBrief) -> str:
    """Return "abandoned" (not in the current branch), "unpublished" (a sink lacks rows of it), or "published"."""
    if brief.epoch not in {each.epoch for each in log_state.lineage()}:
        return "abandoned"
    owed = any(brief.epoch in log_state.unacked(sink) for sink in brief.sinks)
    held = any(brief.epoch > log_state.acked.get(sink, 0) for sink in brief.holds)
    return "unpublished" if owed or held else "published"
