"""A Delta table whose live files are set, not appended to: the base of state tables, staged tables and in-flight tables.

Every change is one compare-and-swap commit with an application transaction `incarnation << 40 | epoch`. That number
only grows along the table's versions and survives log cleanup inside checkpoints. It serves three purposes:

- a guard against a late materialization by a replaced driver,
- proof that an epoch was materialized,
- the map from an epoch to a table version, by bisection over the commit files. They live as long as their versions.

The manifests contain everything that a table shows: a damaged log is set aside and re-created.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError

from spark_ckpt.delta_files import LOG, TableCommit
from spark_ckpt.errors import LogDamaged, StateSchemaChanged, StoreUnreachable
from spark_ckpt.storage_errors import outage, refusal_in
from spark_ckpt.store import delta_log
from spark_ckpt.store.delta_log import Actions, Application, CommitLost
from spark_ckpt.store.folders import move_folder
from spark_ckpt.store.location import Location

_log = logging.getLogger(__name__)
_EPOCH_BITS = 40
_ATTEMPTS = 20
_CHECKPOINT_EVERY = 64


def txn_version(incarnation: int, epoch: int) -> int:
    """Return the version of the application transaction for an epoch materialized by an incarnation."""
    return incarnation << _EPOCH_BITS | epoch


def epoch_of(key: int) -> int:
    """Return the epoch of a transaction version."""
    return key & (1 << _EPOCH_BITS) - 1


Change = Callable[[DeltaTable], Actions | None]
"""Function from the newest version of a table to the actions that change it; None if there is nothing to do."""


class DataTable:
    """One table of the store. Not thread-safe."""

    def __init__(self, location: Location, app_id: str, description: str) -> None:
        self.location = location
        self._app_id = app_id
        self._description = description
        self._table: DeltaTable | None = None
        self._found: tuple[DeltaTable | None, int, int] = None, -1, -1
        """The newest transaction version of a version of the table."""
        self._has_looked = False

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Look for newer versions once for everything in the block.

        A commit is a compare-and-swap on the version that was seen. If another writer was faster, it fails, and `commit`
        looks again. So no other writer is overlooked, and an object store gets fewer requests.
        """
        self.refreshed()
        self._has_looked = True
        try:
            yield
        finally:
            self._has_looked = False

    def refreshed(self) -> DeltaTable | None:
        """Return the newest version; None if the table does not exist yet. Raises `LogDamaged`, a `StoreOutage`."""
        return self._table if self._has_looked and self._table is not None else self._advanced()

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

    def live(self) -> dict[str, int]:
        """Return paths and sizes in bytes of the newest version's files."""
        table = self.refreshed()
        return {} if table is None else delta_log.live_files(table)

    def newest_txn_version(self) -> int:
        """Return the newest transaction version; -1 for none."""
        table = self.refreshed()
        if table is None:
            return -1
        # delta-rs searches the log for it at each call.
        known, version, newest = self._found
        if known is not table or version != table.version():
            found = table.transaction_version(self._app_id)
            newest = -1 if found is None else found
            self._found = table, table.version(), newest
        return newest

    def refuse_if_beyond(self, key: int) -> None:
        """Raise `LogDamaged` if the table claims an epoch above `key`, the newest committed one."""
        found = self.newest_txn_version()
        if found > key:
            raise LogDamaged(
                f"the table says it shows epoch {epoch_of(found)}, which was never decided", table=self.location.uri
            )

    def redo(self, materialize: Callable[[], None], newest: int, ours: bool) -> None:
        """Call `materialize`. If the log is damaged, or beyond the key `newest`, re-create it and call again.

        Only the current incarnation (`ours`) may re-create it. Otherwise the `LogDamaged` is raised.
        """
        try:
            # A table ahead of the log would take every later materialization for a late one and ignore it.
            with self.one_look():
                self.refuse_if_beyond(newest)
                materialize()
        except LogDamaged:
            if not ours:
                raise
            self.begin_again()
            materialize()

    def begin_again(self) -> None:
        """Set the table's log aside, so that it is re-created from the manifests."""
        aside = f"_damaged{LOG}-{time.time_ns() // 1_000_000}"
        move_folder(self.location, LOG, aside)
        _log.warning("the log of %s is damaged; it is set aside as %s and made anew", self.location.uri, aside)
        self._table = None

    def ensure(self, schema: pa.Schema, partition_by: Sequence[str] = (), *, replace: bool = False) -> None:
        """Create the table, or add new columns.

        If a column changed its type, raise `StateSchemaChanged`. With `replace` the table starts over without files
        instead.
        """
        wanted = _nullable(schema)
        table = self.refreshed()
        if table is None:
            self._table = delta_log.create_table(self.location, wanted, self._description, partition_by)
            return
        known = {each.name: each for each in table.schema().fields}
        changed = next(iter(_changed(table, wanted)), None)
        new = [each for each in Schema.from_arrow(wanted).fields if each.name not in known]
        if changed is not None and not replace:
            raise StateSchemaChanged(
                f"column '{changed.name}' is {known[changed.name].type} in the table and {changed.type} in new files",
                table=self.location.uri,
                hint="give the changed operator a new name",
            )
        if changed is not None:
            self._alter(table, lambda: delta_log.recreate_table(self.location, wanted, self._description, partition_by))
        elif new:
            # No retry: a concurrent writer's commit must fail this one, as everywhere in the store.
            properties = CommitProperties(max_commit_retries=0)
            self._alter(table, lambda: table.alter.add_columns(new, commit_properties=properties))

    def changed_columns(self, schema: pa.Schema) -> list[str]:
        """Return the names of columns that have another type in the table than in `schema`; empty if there is no table."""
        table = self.refreshed()
        return [] if table is None else [each.name for each in _changed(table, schema)]

    def _alter(self, table: DeltaTable, alter: Callable[[], None]) -> None:
        try:
            alter()
        except (DeltaError, OSError) as error:
            raise outage(self.location.uri, error) from error
        # The library committed this version itself, without fsync.
        delta_log.sync_versions(self.location, table.version(), table.version() + 1)
        self._table = delta_log.open_table(self.location)

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
            # Checked in every attempt: a newer incarnation may have materialized meanwhile.
            if key is not None and self.newest_txn_version() >= key:
                return False
            table = self.refreshed()
            actions = None if table is None else change(table)
            if table is None or actions is None:
                return False
            columns = _schema_of(table) if anew is None else _nullable(anew)
            try:
                version = delta_log.commit(
                    table, self.location, actions, columns, application, metadata, anew=anew is not None
                )
            except CommitLost as lost:
                # The outcome may be unknown, so read the log again. If this commit landed, the key check ends the
                # loop.
                self._table = None
                # The file system refused the write, e.g. a full disk: another attempt right now would fail, too.
                if refusal_in(lost) is not None:
                    raise outage(self.location.uri, lost) from lost
                continue
            self._after(version, key)
            return True
        raise StoreUnreachable(
            "other writers kept changing the table",
            table=self.location.uri,
            hint="only spark_ckpt may write tables of a store",
        )

    def _after(self, version: int, key: int | None) -> None:
        table = self._advanced()
        if table is not None and key is not None and table.version() == version:
            self._found = table, version, key  # this commit has recorded it: no search is needed
        if table is not None and version % _CHECKPOINT_EVERY == 0:
            delta_log.checkpoint(table, self.location)

    def version_of(self, key: int, epoch: int) -> int | None:
        """Return the version at which `epoch` was materialized, by the incarnation of `key` or a later one; None if it
        never was.
        """
        versions = self.commit_versions()
        low, high = 0, len(versions)
        while low < high:
            middle = (low + high) // 2
            if self._key_at_or_before(versions, middle) < key:
                low = middle + 1
            else:
                high = middle
        # Commits without a transaction may lie between, e.g. a new column or dropped rows.
        for version in versions[low:]:
            found = self._key_at(version)
            if found is not None:
                return version if epoch_of(found) == epoch else None
        return None

    def commit_versions(self) -> list[int]:
        """Return the versions whose commit file still exists, in order."""
        names = [info.path.rsplit("/", 1)[-1] for info in self.location.list(LOG)]
        return sorted(
            int(name[:20]) for name in names if name.endswith(".json") and name[:20].isdigit() and len(name) == 25
        )

    def _key_at_or_before(self, versions: Sequence[int], at: int) -> int:
        for version in reversed(versions[: at + 1]):
            found = self._key_at(version)
            if found is not None:
                return found
        return -1

    def _key_at(self, version: int) -> int | None:
        commit = TableCommit(version, delta_log.actions_of(self.location, version))
        return next((number for app, number in commit.transactions if app == self._app_id), None)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(each.name, each.type, nullable=True) for each in schema])


def _changed(table: DeltaTable, schema: pa.Schema) -> list[Field]:
    """Return the columns of `schema` that the table has with another type."""
    known = {each.name: each.type for each in table.schema().fields}
    return [
        each for each in Schema.from_arrow(_nullable(schema)).fields if known.get(each.name, each.type) != each.type
    ]


def _schema_of(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())
