"""Opens an existing store without the name of its job or outbox, and names what an outbox does in place of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from spark_ckpt.cli.options import pairs
from spark_ckpt.epochs.epoch_status import statuses
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief
from spark_ckpt.errors import CkptError, ConfigInvalid, EpochNotFound, StoreForeign
from spark_ckpt.outbox.advice import of_outbox
from spark_ckpt.store.epoch_log import wall_ms
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.holder import runs
from spark_ckpt.store.stage_folder import in_terms_of_stage, stores_below
from spark_ckpt.store.store import Store


def open_store(uri: str, storage_options: Sequence[str] | None = None) -> Store:
    """Return the store at `uri`; creates nothing. Raises `StoreForeign` (also if there is none), or a `StoreOutage`."""
    options = pairs(storage_options, "--storage-option")
    try:
        return existing_store(uri, options)
    except StoreForeign as error:
        # The program names this folder as its store, and each of its stages has one of its own there.
        if (below := stores_below(uri, options)) != [uri]:
            error.hint = f"it is the folder of a program with stages; give the store of one: {', '.join(below)}"
        raise


def open_stores(uris: Sequence[str], storage_options: Sequence[str] | None = None) -> list[Store]:
    """Return the stores at `uris`, in place of a folder of a program with stages those of its stages. Raises as
    `open_store`.
    """
    options = pairs(storage_options, "--storage-option")
    return [existing_store(store, options) for uri in uris for store in stores_below(uri, options)]


@contextmanager
def advice_for(store: Store) -> Iterator[None]:
    """Put the advice of errors in terms of an outbox or a stage if the store is of one."""
    try:
        yield
    except CkptError as error:
        error.hint = in_terms_of(store, error.hint)
        raise


def in_terms_of(store: Store, hint: str) -> str:
    """Return the hint with the calls that the owner of the store has: the rules of epochs advise a start of the job."""
    log_state = store.log.state()
    if log_state.kind == "outbox":
        return of_outbox(hint, log_state)
    return in_terms_of_stage(store.location, hint)


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
    """Return the status of an epoch now, in a word of `epochs.epoch_status`."""
    now_ms = wall_ms()
    return statuses(log_state, now_ms, runs(log_state, now_ms), [brief])[brief.epoch]
