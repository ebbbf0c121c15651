"""A Delta table whose live files are set, not appended to: the base of state tables, staged tables and in-flight tables.

Every change is one compare-and-swap commit with an application transaction `incarnation << 40 | epoch`. That number
only grows along the table's versions and survives log cleanup inside checkpoints. It serves three purposes:

- a guard against a late materialization by a replaced driver,
- proof that an epoch was materialized,
- the map from an epoch to a table version, by bisection over the commit files. They live as long as their versions.

The manifests contain everything that a table shows: a damaged log is set aside and re-created.

A process remembers the newest version that it has read or committed, so that an epoch costs an object store one request
per table. That is safe because a commit creates exactly the version after the remembered one: if another writer has it,
the commit fails, and the table is read again.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError

from spark_ckpt.delta_files import LOG, TableCommit
from spark_ckpt.errors import LogDamaged, StateSchemaChanged, StoreUnreachable
from spark_ckpt.storage_errors import outage, refusal_in
from spark_ckpt.store import delta_log
from spark_ckpt.store.copied_log import log_files
from spark_ckpt.store.delta_log import Actions, Application, CommitLost
from spark_ckpt.store.folders import move_folder
from spark_ckpt.store.location import Location
from spark_ckpt.store.trim import old_before_ms

if TYPE_CHECKING:
    from spark_ckpt.store.epoch_log import EpochLog

_log = logging.getLogger(__name__)
# The version of a Delta transaction is a signed 64-bit integer: 40 bits of epochs leave 23 for incarnations.
_EPOCH_BITS = 40
_ATTEMPTS = 20
# A reader that opens the table reads about so many commits after a checkpoint.
CHECKPOINT_EVERY = 64


def txn_version(incarnation: int, epoch: int) -> int:
    """Return the version of the application transaction for an epoch materialized by an incarnation."""
    return incarnation << _EPOCH_BITS | epoch


def epoch_of(key: int) -> int:
    """Return the epoch of a transaction version."""
    return key & (1 << _EPOCH_BITS) - 1


@dataclass(frozen=True, slots=True)
class Seen:
    """One version of a table: its live files with their sizes in bytes, its columns, and its newest transaction version
    (-1 for none).
    """

    version: int
    files: Mapping[str, int]
    columns: pa.Schema
    key: int


Change = Callable[[Seen], Actions | None]
"""Function from the newest version of a table to the actions that change it; None if there is nothing to do."""


class DataTable:
    """One table of the store. Not thread-safe."""

    def __init__(self, location: Location, app_id: str, description: str) -> None:
        self.location = location
        self._app_id = app_id
        self._description = description
        self._table: DeltaTable | None = None
        self._seen: Seen | None = None
        self._seen_s = float("-inf")
        self._columns: tuple[Hashable, pa.Schema] | None = None
        # No commit file is deleted before its horizon, so until then a commit after the remembered version proves that
        # there was none. Half of it is left for a writer that sleeps meanwhile.
        self._trusted_s = -old_before_ms(location, 0) / 2000

    def seen(self) -> Seen | None:
        """Return the newest version as this process knows it: a commit must follow before anybody relies on it.

        Raises as `refreshed`.
        """
        if delta_log.uptime_s() - self._seen_s < self._trusted_s:
            return self._seen
        return self.refreshed()

    def refreshed(self) -> Seen | None:
        """Read the newest version; None if the table does not exist yet. Raises `LogDamaged`, a `StoreOutage`."""
        # Distrusted first: if the read fails, the remembered version must not count again.
        looked_s, self._seen_s = delta_log.uptime_s(), float("-inf")
        table = self._advanced()
        if table is None:
            self._seen = None
        elif self._seen is None or self._seen.version != table.version():
            key = table.transaction_version(self._app_id)
            columns = pa.schema(table.schema().to_arrow())
            self._seen = Seen(table.version(), delta_log.live_files(table), columns, -1 if key is None else key)
        self._seen_s = looked_s
        return self._seen

    def forget(self) -> None:
        """Forget the remembered version: the next access reads the table."""
        self._table, self._seen, self._seen_s = None, None, float("-inf")

    def _advanced(self) -> DeltaTable | None:
        if self._table is None:
            self._table = delta_log.open_table(self.location)
            return self._table
        delta_log.require_log(self.location)
        try:
            delta_log.advance(self._table, self.location)
        # Commit files that the handle refers to may have been trimmed since: open the table again.
        except (DeltaError, OSError, ValueError):
            self._table = delta_log.open_table(self.location)
        return self._table

    def live(self) -> Mapping[str, int]:
        """Read the newest version; return paths and sizes in bytes of its files."""
        seen = self.refreshed()
        return {} if seen is None else seen.files

    def newest_txn_version(self) -> int:
        """Return the newest known transaction version; -1 for none."""
        seen = self.seen()
        return -1 if seen is None else seen.key

    def columns_of(self, written_by: Hashable, read: Callable[[], pa.Schema]) -> pa.Schema:
        """Return the columns of files; `read` reads them from a file.

        Files with the same `written_by` have the same columns, so the last answer is remembered. None for unknown.
        """
        if written_by is None or self._columns is None or self._columns[0] != written_by:
            self._columns = written_by, read()
        return self._columns[1]

    def redo(
        self,
        materialize: Callable[[], None],
        log: EpochLog,
        incarnation: int,
        rebuild: Callable[[], None] | None = None,
    ) -> None:
        """Call `materialize`. If the table's log is damaged, or ahead of the job's `log`, re-create it.

        `rebuild` does that; default: `materialize`. Only the current `incarnation` may re-create it. Otherwise the
        `LogDamaged` is raised.
        """
        try:
            self._refuse_if_ahead(log)
            materialize()
        except LogDamaged:
            # A replaced driver would set aside the log that its successor has just re-created.
            if log.state().incarnation != incarnation:
                raise
            self.begin_again()
            (rebuild or materialize)()

    def _refuse_if_ahead(self, log: EpochLog) -> None:
        # A table ahead of the log would take every later materialization for a late one and ignore it.
        found = self.newest_txn_version()
        for state in (log.known, log.state):  # another incarnation may have committed since the log was read
            newest = state()
            if found <= txn_version(newest.incarnation, newest.last):
                return
        raise LogDamaged(
            f"the table says it shows epoch {epoch_of(found)}, which was never committed", table=self.location.uri
        )

    def begin_again(self) -> None:
        """Set the table's log aside, so that it is re-created from the manifests."""
        # Moved, not deleted: the manifests re-create the table, and the damaged log can still be examined.
        aside = f"_damaged{LOG}-{time.time_ns() // 1_000_000}"
        move_folder(self.location, LOG, aside)
        _log.warning("the log of %s is damaged; it is kept as %s and created again", self.location.uri, aside)
        self.forget()

    def ensure(self, schema: pa.Schema, partition_by: Sequence[str] = (), *, replace: bool = False) -> None:
        """Create the table, or add new columns.

        If a column changed its type, raise `StateSchemaChanged`. With `replace` the table starts over without files
        instead.
        """
        wanted = _nullable(schema)
        seen = self.seen()
        # A change of columns is no commit of ours after a known version: it needs a handle at the newest one.
        if seen is not None and (_changed(seen, wanted) or _new(seen, wanted)):
            seen = self.refreshed()
        if seen is None or self._table is None:
            self._table = delta_log.create_table(self.location, wanted, self._description, partition_by)
            self.refreshed()
            return
        changed, new = next(iter(_changed(seen, wanted)), None), _new(seen, wanted)
        if changed is not None and not replace:
            raise StateSchemaChanged(
                f"column '{changed.name}' is {_known(seen)[changed.name]} in the table and {changed.type} in new files",
                table=self.location.uri,
                hint="give the changed operator a new name, and drop the state of the old one: "
                "job.start(accept_dropped_operator='OLD_NAME')",
            )
        if changed is not None:
            table = self._table
            self._alter(table, lambda: delta_log.recreate_table(self.location, wanted, self._description, partition_by))
        elif new:
            table = delta_log.writable(self._table, self.location)
            # No retry: a concurrent writer's commit must fail this one, as everywhere in the store.
            properties = CommitProperties(max_commit_retries=0)
            self._alter(table, lambda: table.alter.add_columns(new, commit_properties=properties))

    def changed_columns(self, schema: pa.Schema) -> list[str]:
        """Return the names of columns that have another type in the table than in `schema`; empty if there is no table."""
        seen = self.seen()
        return [] if seen is None else [each.name for each in _changed(seen, schema)]

    def _alter(self, table: DeltaTable, alter: Callable[[], None]) -> None:
        try:
            alter()
        except (DeltaError, OSError) as error:
            raise outage(self.location.uri, error) from error
        # The library committed this version itself, without fsync.
        delta_log.sync_versions(self.location, table.version(), table.version() + 1)
        self.forget()

    def commit(
        self, key: int | None, change: Change, metadata: Mapping[str, str], anew: pa.Schema | None = None
    ) -> bool:
        """Apply `change` in one commit, on a newer version if another commit came first.

        Return False if there was nothing to do.

        - `key`: commit only while the table's transaction version is below it.
        - The last parameter replaces the table's columns. Of the files only those that `change` adds stay.

        Raises a `StoreOutage`, also after many lost races.
        """
        application = None if key is None else Application(self._app_id, key)
        for _ in range(_ATTEMPTS):
            began_s, seen = delta_log.uptime_s(), self.seen()
            # Checked in every attempt: a newer incarnation may have materialized meanwhile.
            if seen is None or self._table is None or (key is not None and seen.key >= key):
                return False
            actions = change(seen)
            if actions is None:
                return False
            columns, is_anew = (seen.columns, False) if anew is None else (_nullable(anew), True)
            arguments = self._table, self.location, actions, columns, application, metadata
            try:
                version = delta_log.commit(*arguments, after=seen.version, anew=is_anew)
            except CommitLost as lost:
                # The outcome may be unknown, so read the log again. If this commit landed, the key check ends the
                # loop.
                self.forget()
                # The file system refused the write, e.g. a full disk: another attempt right now would fail, too.
                if refusal_in(lost) is not None:
                    raise outage(self.location.uri, lost) from lost
                continue
            files = delta_log.files_after(seen.files, actions, anew=is_anew)
            # Aged from before the commit: a pause within it counts, too.
            self._seen, self._seen_s = Seen(version, files, columns, seen.key if key is None else key), began_s
            self._checkpoint_if_due(version)
            return True
        raise StoreUnreachable(
            "other writers kept changing the table",
            table=self.location.uri,
            hint="only spark_ckpt may write tables of a store",
        )

    def _checkpoint_if_due(self, version: int) -> None:
        if version % CHECKPOINT_EVERY == 0:
            # A commit does not move the handle, and a checkpoint is of the handle's version.
            self.refreshed()
            if self._table is not None:
                self._table = delta_log.checkpoint(self._table, self.location)

    def version_of(self, key: int, epoch: int) -> int | None:
        """Return the version at which `epoch` was materialized, by the incarnation of `key` or a later one; None if it
        never was.
        """
        return self.versions_of([(key, epoch)])[0]

    def versions_of(self, wanted: Iterable[tuple[int, int]]) -> list[int | None]:
        """Return `version_of` for several pairs of a key and an epoch. The log is listed once, and a commit read once."""
        versions, key_at = self.commit_versions(), cache(self._key_at)
        return [_version_of(versions, key_at, key, epoch) for key, epoch in wanted]

    def commit_versions(self) -> list[int]:
        """Return the versions whose commit file still exists, in order."""
        return sorted(version for version, kind in log_files(self.location) if kind == "json")

    def _key_at(self, version: int) -> int | None:
        commit = TableCommit(version, delta_log.actions_of(self.location, version))
        return next((number for app, number in commit.transactions if app == self._app_id), None)


def _version_of(versions: Sequence[int], key_at: Callable[[int], int | None], key: int, epoch: int) -> int | None:
    first = bisect_left(range(len(versions)), key, key=lambda at: _key_at_or_before(versions[: at + 1], key_at))
    # Commits without a transaction may lie between, e.g. a new column or dropped rows.
    for version in versions[first:]:
        found = key_at(version)
        if found is not None:
            # After a restore a later incarnation shows the same epoch again, under a greater number.
            return version if epoch_of(found) == epoch else None
    return None


def _key_at_or_before(versions: Sequence[int], key_at: Callable[[int], int | None]) -> int:
    # The bisection needs a number at every place: a commit without one has that of the commit before it.
    return next((found for version in reversed(versions) if (found := key_at(version)) is not None), -1)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(each.name, each.type, nullable=True) for each in schema])


def _known(seen: Seen) -> dict[str, object]:
    # Compared as Delta's types: several Arrow types are one of them.
    return {each.name: each.type for each in Schema.from_arrow(_nullable(seen.columns)).fields}


def _changed(seen: Seen, schema: pa.Schema) -> list[Field]:
    """Return the columns of `schema` that the table has with another type."""
    known = _known(seen)
    return [
        each for each in Schema.from_arrow(_nullable(schema)).fields if known.get(each.name, each.type) != each.type
    ]


def _new(seen: Seen, schema: pa.Schema) -> list[Field]:
    """Return the columns of `schema` that the table does not have."""
    known = _known(seen)
    return [each for each in Schema.from_arrow(_nullable(schema)).fields if each.name not in known]
