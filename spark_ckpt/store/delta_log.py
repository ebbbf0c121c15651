"""The log of a Delta table as a register that only one writer can advance: open, compare-and-swap, checkpoint.

A commit is a compare-and-swap on the table version: it creates the file of the next version, which only one writer can.
delta-rs would read the log before and after each commit, which an object store charges for. It does not fsync. So on a
local file system this module syncs the commit file and its folder before a commit counts. It also writes the
checkpoints: the library's own hook would leave them unsynced after an acknowledged commit.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pydantic_core import to_json

from spark_ckpt.delta_files import LOG, actions_in, commit_name, commit_path
from spark_ckpt.errors import LogDamaged, StoreOutage
from spark_ckpt.storage_errors import one_line, outage, refusal_in, typed_errors_at
from spark_ckpt.store import durable
from spark_ckpt.store.copied_log import CopiedTable, keep, log_files, open_copy, pull, push_checkpoint
from spark_ckpt.store.location import Location
from spark_ckpt.store.torn import set_aside_torn, set_aside_torn_commit
from spark_ckpt.store.uploads import UploadFailed, create_file

A_LOG = "the log of a table"
"""Name of the table in errors of callers that do not know it."""
Actions = Sequence[AddAction | RemoveAction]

# The library's own checkpoints and log cleanup stay off: `checkpoint` and `trim` do both, durably and for kept
# versions.
_QUIET = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
CONFIGURATION: Mapping[str, str | None] = {
    "delta.checkpointInterval": "64",
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
"""Table properties, set once at creation. A later change of properties would make every concurrent commit fail."""


class CommitLost(Exception):
    """Another writer has this version, or the outcome is unknown: read the log again."""


@dataclass(frozen=True, slots=True)
class Application:
    """Delta's application transaction (`txn`): recorded with the commit, kept by checkpoints, readable for ever."""

    app_id: str
    version: int


def open_table(location: Location, acknowledged: int | None = None) -> DeltaTable | None:
    """Open the newest version of the table. Return None if there is no table.

    `acknowledged`: the newest version known to be acknowledged, if the caller records that. A torn later version, left
    by a power loss, is set aside.

    Raises `LogDamaged` if the log can be listed but not read, a `StoreOutage` for any other failure.
    """
    with typed_errors_at(location.uri):
        if location.local is not None and not location.local.is_dir():
            return None
    # With a record of acknowledgements even an empty newest commit is known to be torn. Check before delta-rs accepts
    # it.
    if location.local is not None and acknowledged is not None:
        set_aside_torn_commit(location.local / LOG, acknowledged)
    try:
        return _opened(location)
    except (DeltaError, OSError, ValueError) as error:
        if refusal_in(error) is not None:
            raise outage(location.uri, error) from error
        # Each call sets at least one file aside, so the recursion ends.
        if location.local is not None and set_aside_torn(location.local / LOG, acknowledged):
            return open_table(location, acknowledged)
        raise _damaged(location, error, _gap(log_files(location))) from error


def _opened(location: Location) -> DeltaTable | None:
    try:
        with panics_as_errors():
            return open_copy(location) if location.local is None else DeltaTable(location.uri)
    except TableNotFoundError:
        return None


def advance(table: DeltaTable, location: Location) -> None:
    """Read the commits made since. Errors are deltalake's own, and OSError."""
    # delta-rs takes milliseconds to find out that there is none. An epoch asks more than twenty times.
    if location.local is not None and not _has_newer(location.local / LOG, table.version()):
        return
    with panics_as_errors():
        if isinstance(table, CopiedTable):
            pull(table)
        table.update_incremental()


def writable(table: DeltaTable, location: Location) -> DeltaTable:
    """Return a handle of the newest version with which the library itself can commit."""
    if isinstance(table, CopiedTable):
        return DeltaTable(location.uri, storage_options=dict(location.storage_options))
    advance(table, location)
    return table


def _has_newer(folder: Path, version: int) -> bool:
    """Return True if a commit or a checkpoint of a later version is in `folder`. Lists it as delta-rs does."""
    # The next commit alone proves nothing: it may have been trimmed, and later ones are there.
    newest = f"{version:020d}"
    with os.scandir(folder) as entries:
        return any(each.name[:20] > newest and each.name[:20].isdigit() for each in entries)


@contextlib.contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise a panic of delta-rs as a `DeltaError`. A panic is no `Exception`, and some damaged checkpoints cause one."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DeltaError(f"delta-rs gave up: {error}") from error


def _gap(files: Collection[tuple[int, str]]) -> str:
    """Return a sentence about the first commit that is missing after the newest checkpoint; empty if there is no gap."""
    commits = {version for version, kind in files if kind == "json"}
    checkpoint = max((version for version, kind in files if kind != "json"), default=None)
    first = min(commits, default=0) if checkpoint is None else checkpoint + 1
    gone = next((version for version in range(first, max(commits, default=0)) if version not in commits), None)
    return "" if gone is None else f"commit {gone} is missing, and there are later ones"


def _damaged(location: Location, error: Exception, what: str = "") -> LogDamaged:
    return LogDamaged(
        f"{A_LOG} cannot be read: {what or one_line(error)}",
        table=location.uri,
        hint="restore the table's _delta_log folder from a backup; a state table's and those of staged rows are created again by "
        "the job's next start",
    )


def create_table(
    location: Location, schema: pa.Schema, description: str, partition_by: Sequence[str] = ()
) -> DeltaTable:
    """Create the table durably. Open it if another process creates it meanwhile. Raises a `StoreOutage`."""
    if location.local is not None:
        # delta-rs creates the folders without an fsync: after a power loss a table with synced commits could be missing
        # as a whole.
        durable.make_folder(location.local / LOG, location.root)
    durable.step("commit", f"{location.uri} 0")
    try:
        DeltaTable.create(
            location.uri,
            schema,
            mode="error",
            partition_by=list(partition_by),
            description=description,
            configuration=dict(CONFIGURATION),
            storage_options=dict(location.storage_options),
            post_commithook_properties=_QUIET,
        )
    except (DeltaError, OSError) as error:
        table = open_table(location)
        if table is None:
            raise outage(location.uri, error) from error
    else:
        table = open_table(location)
    # Also after a lost race: the other creator may not have synced its commit yet.
    sync_versions(location, 0, 0)
    if table is None:
        raise outage(location.uri, FileNotFoundError("the table vanished right after it was created"))
    return table


def recreate_table(location: Location, schema: pa.Schema, description: str, partition_by: Sequence[str]) -> None:
    """Replace the table's columns and remove all files from it, in one commit. Errors are deltalake's own."""
    durable.step("commit", f"{location.uri} again")
    DeltaTable.create(
        location.uri,
        schema,
        mode="overwrite",
        partition_by=list(partition_by),
        description=description,
        configuration=dict(CONFIGURATION),
        storage_options=dict(location.storage_options),
        commit_properties=CommitProperties(max_commit_retries=0),
        post_commithook_properties=_QUIET,
    )


def commit(
    table: DeltaTable,
    location: Location,
    actions: Actions,
    schema: pa.Schema,
    application: Application | None = None,
    metadata: Mapping[str, str] | None = None,
    *,
    after: int | None = None,
    anew: bool = False,
) -> int:
    """Commit `actions` as the next version. Return that version. The handle itself does not move.

    - `schema`: columns of the table.
    - `application`: transaction to record with the commit.
    - `metadata`: commit info.
    - `after`: newest version that the caller knows, by its own commits since the handle was read. Default: the handle's.
    - The last flag replaces the table's content: it then has the columns of `schema`, and only the files that `actions`
      add.

    Raises `CommitLost` after any error of the write: the version may belong to another writer, to this commit, or still
    be free. Raises a `StoreOutage` if the table's folder disappeared.
    """
    # The number is fixed before the write. The next free one would be no compare-and-swap: rows in between would be
    # unread.
    version = (table.version() if after is None else after) + 1
    require_log(location)
    durable.step("commit", f"{location.uri} {version}")
    content = b"" if anew else _content(actions, application, metadata or {})
    try:
        # A change of columns needs delta-rs, which writes the metadata of the table.
        if anew or not create_file(location.uri, location.storage_options, commit_path(version), content):
            _commit_by_library(table, location, version, actions, schema, application, metadata or {}, anew)
    except (DeltaError, OSError, UploadFailed) as error:
        raise CommitLost(one_line(error)) from error
    if isinstance(table, CopiedTable) and content:
        keep(table, version, content)
    # The file system only checked that the name was free, which is no proof that it is the next version.
    require_predecessor(location, version)
    sync_versions(location, version, version)
    return version


def _commit_by_library(
    table: DeltaTable,
    location: Location,
    version: int,
    actions: Actions,
    schema: pa.Schema,
    application: Application | None,
    metadata: Mapping[str, str],
    anew: bool,
) -> None:
    """Commit columns, too, or to an object store that obstore cannot open."""
    table = writable(table, location)
    if table.version() + 1 != version:
        raise CommitLost(f"the table has version {table.version()}")
    transactions = None if application is None else [Transaction(application.app_id, application.version)]
    table.create_write_transaction(
        [each for each in actions if not anew or isinstance(each, AddAction)],
        "overwrite" if anew else "append",
        Schema.from_arrow(schema),
        partition_by=table.metadata().partition_columns,
        # With retries delta-rs would commit as a later version if it sees no conflict, on rows that the caller has not
        # read.
        commit_properties=CommitProperties(dict(metadata), max_commit_retries=0, app_transactions=transactions),
        post_commithook_properties=_QUIET,
    )


def _content(actions: Actions, application: Application | None, metadata: Mapping[str, str]) -> bytes:
    """Return a commit file. Source: the Delta transaction log protocol, "Actions"."""
    info = {"timestamp": _now_ms(), "operation": "WRITE", "operationParameters": {"mode": "Append"}, **metadata}
    lines: list[dict[str, object]] = [{"commitInfo": {**info, "engineInfo": "spark_ckpt"}}]
    if application is not None:
        lines.append({"txn": {"appId": application.app_id, "version": application.version}})
    return b"\n".join(map(to_json, [*lines, *map(_line, actions)]))


def _line(action: AddAction | RemoveAction) -> dict[str, object]:
    common = {
        # The Delta protocol asks for a URI-encoded path.
        "path": quote(action.path),
        "partitionValues": action.partition_values,
        "size": action.size,
        "dataChange": action.data_change,
    }
    if isinstance(action, AddAction):
        return {"add": {**common, "modificationTime": action.modification_time, "stats": action.stats}}
    # Extended: the size and the partition values are given.
    return {"remove": {**common, "deletionTimestamp": action.deletion_timestamp, "extendedFileMetadata": True}}


def files_after(files: Mapping[str, int], actions: Actions, *, anew: bool = False) -> dict[str, int]:
    """Return the live files after a commit of `actions` to a table with `files`: paths and sizes in bytes."""
    gone = {each.path for each in actions if isinstance(each, RemoveAction)}
    kept = {path: size for path, size in files.items() if path not in gone and not anew}
    return kept | {each.path: each.size for each in actions if isinstance(each, AddAction)}


def require_log(location: Location) -> None:
    """Raise a `StoreOutage` if the log of a local table is missing.

    A handle on an unmounted folder finds no new commits and would take its own version for the newest.
    """
    with typed_errors_at(location.uri):
        if location.local is not None and not (location.local / LOG).is_dir():
            raise outage(location.uri, FileNotFoundError("the log of the table is gone; is the file system mounted?"))


def require_predecessor(location: Location, version: int) -> None:
    """Undo a commit whose version was free although it is not the next one.

    Two causes are known: the folder was unmounted and re-created, or the log was trimmed while the writer slept (`trim`
    deletes the oldest commit first).
    """
    if location.local is None or version == 0:
        return
    folder = location.local / LOG
    with typed_errors_at(location.uri):
        if _opens(folder / commit_name(version - 1)) or any(folder.glob(f"{version:020d}.checkpoint*")):
            return  # a checkpoint of this version proves that the log was trimmed up to it since
        # A commit without its predecessor would be a gap, which readers take for damage.
        (folder / commit_name(version)).unlink(missing_ok=True)
        # Later commits: `trim` has freed this number. None: this is another folder than before.
        if any(path.name > commit_name(version) for path in folder.glob("*.json")):
            raise CommitLost("the log moved on while this process slept")
        raise outage(location.uri, FileNotFoundError("the table was taken away while it was written"))


def _opens(path: Path) -> bool:
    try:
        # `exists` may answer from a cache; a network file system asks its server only when a file is opened.
        path.open("rb").close()
    except FileNotFoundError:
        return False
    return True


def sync_versions(location: Location, first: int, last: int) -> None:
    """Sync the commit files `first` to `last`, so that they survive a power loss. A no-op in object stores."""
    if location.local is None:
        return
    folder = location.local / LOG
    for version in range(first, last + 1):
        # A missing file was trimmed: a checkpoint covers it.
        with contextlib.suppress(FileNotFoundError):
            durable.sync_file(folder / commit_name(version))


def checkpoint(table: DeltaTable, location: Location) -> DeltaTable:
    """Write a durable checkpoint of the handle's version. Return the handle to go on with.

    It is derived data, so a failure is ignored.
    """
    durable.step("checkpoint", f"{location.uri} {table.version()}")
    with contextlib.suppress(DeltaError, OSError, StoreOutage):
        if isinstance(table, CopiedTable):
            return push_checkpoint(table)
        table.create_checkpoint()
    if location.local is None:
        return table
    for path in (location.local / LOG).glob(f"{table.version():020d}.checkpoint*"):
        durable.sync_file(path)
    # delta-rs syncs neither the checkpoint nor the hint that names it.
    hint = location.local / LOG / "_last_checkpoint"
    if hint.exists():
        durable.sync_file(hint)
    return table


def actions_of(location: Location, version: int) -> list[dict[str, Any]]:
    """Return the actions of one commit. Raises `LogDamaged`, FileNotFoundError."""
    content = location.read_bytes(commit_path(version))
    try:
        return actions_in(content, f"commit {version}", "")
    except LogDamaged as error:
        raise _damaged(location, error, error.what) from None


def live_files(table: DeltaTable) -> dict[str, int]:
    """Return paths and sizes in bytes of the files that make up the handle's version. Raises `LogDamaged`."""
    try:
        with panics_as_errors():
            # `pa.table` would load pandas, only to test if this is a frame.
            actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
        return dict(zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True))
    except (DeltaError, pa.ArrowException, ValueError, KeyError) as error:
        raise _damaged(Location(table.table_uri), error) from error


def added(
    path: str, size: int, stats: str, *, data_change: bool, partition: Mapping[str, str | None] | None = None
) -> AddAction:
    """Return the action that adds a file of `size` bytes to the table. `stats` is Delta's JSON text."""
    return AddAction(path, size, dict(partition or {}), _now_ms(), data_change, stats)


def removed(path: str, size: int, *, data_change: bool) -> RemoveAction:
    """Return the action that removes a file from the table. Its bytes stay."""
    return RemoveAction(path, data_change, _now_ms(), size, {})


def uptime_s() -> float:
    """Return a clock that counts suspended time, which `time.monotonic` on Linux does not; seconds."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
