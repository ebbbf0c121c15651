"""Opens an existing store without the name of its job or outbox, and names what an outbox does in place of a job."""

from __future__ import annotations

from collections.abc import Sequence

from spark_ckpt.cli.options import pairs
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief
from spark_ckpt.errors import ConfigInvalid, EpochNotFound
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
        raise EpochNotFound(
            f"the {log_state.kind} has no epoch yet", **{log_state.kind: log_state.job}, hint=first_epoch(log_state)
        )
    return log_state.latest


def first_epoch(log_state: LogState) -> str:
    """Return the step that makes the first epoch."""
    if log_state.kind == "outbox":
        return "start the query; its next batch is the first epoch"
    return "start the job; it takes the first one"


def open_store_with_state(uri: str, storage_options: Sequence[str] | None = None) -> Store:
    """Return the store of a job, as `open_store`. Raises `ConfigInvalid` for that of an outbox, which has no operators."""
    opened = open_store(uri, storage_options)
    log_state = opened.log.state()
    if log_state.kind == "outbox":
        raise ConfigInvalid(
            f"the store belongs to outbox '{log_state.job}', which has no state",
            hint="Spark keeps the query's state in the query's checkpoint: spark.read.format('statestore').load(checkpoint)",
        )
    return opened


def status_of(log_state: LogState, brief: EpochBrief) -> str:
    """Return "abandoned" (not in the current branch), "unpublished" (a sink lacks rows of it), or "published"."""
    if brief.epoch not in {each.epoch for each in log_state.lineage()}:
        return "abandoned"
    owed = any(brief.epoch in log_state.unacked(sink) for sink in brief.sinks)
    held = any(brief.epoch > log_state.acked.get(sink, 0) for sink in brief.holds)
    return "unpublished" if owed or held else "published"
