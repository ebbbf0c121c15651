"""Publishing with deltalake: files staged in the table's folder become visible in one commit."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from pyspark.sql.types import StructType

from spark_ckpt.connector import EpochOutput, PublishReceipt, SinkContext, StagedFile
from spark_ckpt.delta_files import LOG, commit_path
from spark_ckpt.errors import PublishFailed
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.storage_errors import one_line
from spark_ckpt_delta.fits import StagedColumns, check_fits
from spark_ckpt_delta.log import filesystem, local_root, open_table, read_commit
from spark_ckpt_delta.marker import (
    application_id,
    check_owner,
    commit_metadata,
    fence_metadata,
    incarnation_id,
    is_published,
    read_marker,
    refuse_if_fenced,
    transaction_version,
)
from spark_ckpt_delta.refusals import another_table, cannot_be_opened, publish_failed
from spark_ckpt_delta.staged import present, remove_orphans, verified

if TYPE_CHECKING:
    from pathlib import Path

# deltalake itself repeats an append that only lost a version: another attempt here follows a conflict.
_ATTEMPTS_MAX = 4
_ATTEMPTS_TO_REPLACE_MAX = 20
"""More, as each commit of another writer costs one."""
_REPLAY_SEARCH_VERSIONS = 1000


class DeltalakePublisher:
    """Publisher of one incarnation for a table that other writers may append to at the same time.

    A commit carries the epoch's marker, so it succeeds once: an attempt that repeats it or races for it reads the
    marker.
    """

    def __init__(
        self,
        table: str,
        storage_options: Mapping[str, str],
        context: SinkContext,
        schema: StructType | None = None,
    ) -> None:
        """Open the table and check its owner. Raises `SinkInvalid` or `PublishFailed`.

        `schema`: of the job's rows; without it the types of partition columns are not compared.
        """
        self._table = table
        self._schema = schema
        self._columns = StagedColumns()
        self._storage_options = dict(storage_options)
        self._context = context
        self._application = application_id(context, "deltalake")
        self._id: str | None = None
        opened = self._open()
        check_owner(table, opened, context, "deltalake")
        # A table that is dropped and created again under this path lacks the rows before. Each publish compares the
        # id.
        self._id = str(opened.metadata().id)

    def publish(self, output: EpochOutput) -> PublishReceipt:
        """Commit the epoch's files unless the table has them. On a POSIX file system the commit is durable on
        return.
        """
        rows = sum(file.rows for file in output.files)
        opened = self._open()
        marker = read_marker(opened, self._application)
        hit(Failpoint.MARKER_READ)
        # The marker comes before the files: those of a published epoch may be gone by OPTIMIZE and VACUUM.
        if is_published(marker, output, self._context):
            # The attempt that committed may have died before its fsync.
            self._harden(range(opened.version(), -1, -1)[:_REPLAY_SEARCH_VERSIONS])
            return PublishReceipt(output.epoch, rows, replayed=True)
        # An epoch without rows needs no commit once the table has a marker, unless it empties the table.
        if not output.files and marker is not None and not output.replaces:
            return PublishReceipt(output.epoch, 0, replayed=False)
        found = verified(output, self._context.sink)  # a commit that names a missing or damaged file breaks the table
        actions = [_add_action(file, info) for file, info in zip(output.files, found, strict=True)]
        # Other writers may commit in between, so that the search for this sink's commit begins here.
        before = opened.version()
        hit(Failpoint.PRE_COMMIT)
        replayed = self._commit(opened, output, actions)
        hit(Failpoint.PUBLISH_COMMITTED)
        self._harden(itertools.count(before + 1))
        return PublishReceipt(output.epoch, rows, replayed)

    def fence(self) -> None:
        """Record the incarnation in a commit without rows, unless the table has it or a newer one.

        A commit that an older publisher has prepared is then a conflict, and its next look at the marker fences it.
        """
        application, ours = incarnation_id(self._application), self._context.incarnation
        failure: Exception | None = None
        for _ in range(_ATTEMPTS_MAX):
            opened = self._open()
            # After an error, too, which does not tell if the fence landed.
            if (opened.transaction_version(application) or 0) >= ours:
                return
            try:
                opened.create_write_transaction(
                    [],
                    mode="append",
                    schema=opened.schema(),
                    partition_by=list(opened.metadata().partition_columns),
                    commit_properties=CommitProperties(
                        custom_metadata=dict(fence_metadata(self._context)),
                        # A publish writes this id, too: a commit that an older publisher has prepared is a conflict.
                        app_transactions=[Transaction(application, ours)],
                    ),
                )
            except (DeltaError, OSError) as error:
                failure = error
        said = one_line(failure) if failure is not None else "it takes no commit"
        raise PublishFailed(f"{self._table}: older publishers could not be fenced: {said}", sink=self._context.sink)

    def tidy(self) -> int:
        """Remove the files that dead incarnations staged in the table's folder and no commit names. Return their
        number.
        """
        return len(remove_orphans(self._table, self._context, self._storage_options))

    def close(self) -> None:
        """Do nothing: the publisher holds nothing open."""

    def _open(self) -> DeltaTable:
        try:
            opened = open_table(self._table, self._storage_options)
        except TableNotFoundError as error:
            if self._id is None:
                raise cannot_be_opened(self._table, error, self._context) from error
            raise another_table(self._table, self._context) from error
        except (DeltaError, OSError) as error:
            raise cannot_be_opened(self._table, error, self._context) from error
        # Before every marker: that of another table of this name says nothing of the rows.
        self._check_identity(opened)
        # A table may have a fence and no marker yet.
        refuse_if_fenced(opened.transaction_version(incarnation_id(self._application)) or 0, self._context)
        return opened

    def _check_identity(self, opened: DeltaTable) -> None:
        if self._id is not None and str(opened.metadata().id) != self._id:
            raise another_table(self._table, self._context)

    def _commit(self, opened: DeltaTable, output: EpochOutput, actions: list[AddAction]) -> bool:
        """Commit once. True if the table has the epoch already, from an earlier attempt or a zombie.

        An error never tells if the commit landed, so the marker decides. A conflict with another writer (its schema
        change, a concurrent marker) ends with a fresh read of the table.
        """
        failure: Exception | None = None
        for _ in range(_ATTEMPTS_TO_REPLACE_MAX if output.replaces else _ATTEMPTS_MAX):
            self._check_fits(opened, output)
            try:
                self._attempt(opened, output, actions)
            except (DeltaError, OSError) as error:
                failure = error
            else:
                return False
            # It fences, too: a successor may have published while this attempt failed.
            opened = self._open()
            # delta-rs refuses a commit if another one with this application id came after `opened`. A second commit
            # with this fresh handle would be no conflict.
            if is_published(read_marker(opened, self._application), output, self._context):
                return True
            # A VACUUM without a retention may have run since the files were verified.
            present(output, self._context.sink)
        said = one_line(failure) if failure is not None else "it takes no commit"
        raise publish_failed(self._table, said, failure, self._context, output.epoch) from failure

    def _check_fits(self, opened: DeltaTable, output: EpochOutput) -> None:
        # A change of the table after `opened` was read is a conflict for a commit with this handle.
        partitioned = opened.metadata().partition_columns
        # Files omit partition columns: the job knows their types.
        job = [field for field in self._schema or () if field.name in partitioned]
        columns = self._columns.of(output)
        check_fits(self._table, opened, output, columns, StructType(job), self._context.sink)

    def _attempt(self, opened: DeltaTable, output: EpochOutput, actions: list[AddAction]) -> None:
        metadata = commit_metadata(self._context, output, "deltalake")
        # Replaced files are those of `opened`. delta-rs takes an OPTIMIZE since then for no conflict, and all rows that
        # it has rewritten would stay: only the very next version may be this commit.
        retries = {"max_commit_retries": 0} if output.replaces else {}
        opened.create_write_transaction(
            list(actions),
            mode="overwrite" if output.replaces else "append",
            schema=opened.schema(),
            partition_by=list(opened.metadata().partition_columns),
            commit_properties=CommitProperties(
                custom_metadata=dict(metadata),
                **retries,
                app_transactions=[
                    # delta-rs records the version and does not compare it: an older handle's conflict and
                    # `is_published` exclude a second commit.
                    Transaction(self._application, transaction_version(output)),
                    Transaction(incarnation_id(self._application), self._context.incarnation),
                ],
            ),
        )

    def _harden(self, versions: Iterable[int]) -> None:
        """Fsync the log's entries up to this sink's commit, the first one among `versions`: deltalake does not."""
        root = local_root(self._table)
        # An object store has an entry for good once it has answered.
        if root is None:
            return
        system = filesystem(self._table, self._storage_options)
        # Every entry on the way is synced: after a power loss, a log with a gap before this commit could not be read.
        for version in versions:
            commit = read_commit(system, version)
            # The log ends here: nothing is newer, or older entries were cleaned up.
            if commit is None:
                return
            _fsync(root / commit_path(version))
            if any(application == self._application for application, _ in commit.commit.transactions):
                # The folder last: it has the names of all entries above.
                _fsync(root / LOG)
                return


def _add_action(file: StagedFile, info: pafs.FileInfo) -> AddAction:
    modified_ms = (info.mtime_ns or 0) // 1_000_000
    # Delta knows no empty partition value: readers would take it for null.
    values = {name: value or None for name, value in file.partition_values.items()}
    return AddAction(file.path, file.size_bytes, values, modified_ms, data_change=True, stats=file.stats)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
