"""Opening a store that exists, without being told whose it is."""

from __future__ import annotations

from collections.abc import Sequence

from spark_ckpt.cli.options import pairs
from spark_ckpt.errors import EpochDamaged, EpochNotFound, StoreForeign
from spark_ckpt.store.epoch_log import wall_ms
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_table import LogTable
from spark_ckpt.store.records import CreatedRecord, EpochBrief
from spark_ckpt.store.store import Store
from spark_ckpt.store.tail import Tail


def open_store(uri: str, storage_options: Sequence[str] | None = None) -> Store:
    """The store at `uri`; nothing is created. Raises `StoreForeign` (also if there is none), `StoreUnreachable`."""
    options = pairs(storage_options, "--storage-option")
    return Store.open(uri, job_of(Location(uri, options)), options)


def job_of(location: Location) -> str:
    """The job that the store at `location` belongs to: the first row of its log says so."""
    table = LogTable.open(location.child("epochs"), wall_ms, create=False)
    if table is None:
        raise StoreForeign(
            "there is no store here", store=location.uri, hint="check the path; a job creates its store when it starts"
        )
    table.refresh()
    created = next((row for row in table.rows if row.kind == "created"), None)
    if created is None:
        raise EpochDamaged(
            "the store's log does not say whose it is",
            store=location.uri,
            hint="its creation was cut short: start the job, it completes it",
        )
    return CreatedRecord.model_validate_json(created.brief).job


def chosen_epoch(tail: Tail, epoch: int | None, savepoint: str | None = None) -> int:
    """The epoch that the options name, by default the newest of the current lineage. Raises `EpochNotFound`."""
    if savepoint is not None:
        if savepoint not in tail.savepoints:
            known = ", ".join(sorted(tail.savepoints)) or "none"
            raise EpochNotFound(f"there is no savepoint '{savepoint}'", savepoints=known, hint="choose one of these")
        return tail.savepoints[savepoint]
    if epoch is not None:
        return epoch
    if not tail.latest:
        raise EpochNotFound("the job has no epoch yet", job=tail.job, hint="start the job; it takes the first one")
    return tail.latest


def status_of(tail: Tail, brief: EpochBrief) -> str:
    """ "abandoned": not of the current lineage; "publishing": a sink is owed it; else "published"."""
    if brief.epoch not in {each.epoch for each in tail.lineage()}:
        return "abandoned"
    owed = any(brief.epoch in tail.unacked(sink) for sink in brief.sinks)
    return "publishing" if owed else "published"
