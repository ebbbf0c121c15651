"""Access to an existing store without knowing its job: for readers and for the command line."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ckpt.epochs.records import CreatedRecord
from spark_ckpt.errors import EpochDamaged, StoreForeign
from spark_ckpt.store.epoch_log import wall_ms
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_rows import record_of
from spark_ckpt.store.log_table import LogTable
from spark_ckpt.store.schemes import store_location
from spark_ckpt.store.store import HINT_NO_STORE, Store


def existing_store(uri: str, storage_options: Mapping[str, str] | None = None) -> Store:
    """Open the store at `uri`. Nothing is created. Raises `StoreForeign` (also if there is no store), a `StoreOutage`."""
    return Store(store_location(uri, storage_options), None)


def job_of(location: Location) -> str:
    """Return the job that owns the store at `location`, from the first row of its log.

    Raises `StoreForeign`, `EpochDamaged` (also for a field of another version).
    """
    table = LogTable.open(location.child("epochs"), wall_ms, create=False)
    if table is None:
        raise StoreForeign("there is no store here", store=location.uri, hint=HINT_NO_STORE)
    table.refresh()
    # The newest one counts: the store of an outbox may have become a job's.
    newest = next((row for row in reversed(table.rows) if row.kind == "created"), None)
    created = None if newest is None else record_of(newest)
    if not isinstance(created, CreatedRecord):
        raise EpochDamaged(
            "the store's log does not say whose it is",
            store=location.uri,
            hint="its creation was cut short: start the job, it completes it",
        )
    return created.job
