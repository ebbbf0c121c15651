"""The place, the handle and the log entries of a Delta table that is not in the job's store.

A source of appended files reads the log directly. Neither a handle's add actions nor a table version tell three things:
the files that one commit added, their order, and if they are new or rewritten data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from spark_ckpt.delta_files import LOG, TableCommit, actions_in, commit_path, oldest_without_gap, versions_in
from spark_ckpt.errors import LogDamaged
from spark_ckpt.place import local_path, place_of

BOUNDED = "__CHAR_VARCHAR_TYPE_STRING"
"""Key in a column's metadata, with the type char(n) or varchar(n) that Spark stores as a string."""

_LISTINGS = 3

Partition: TypeAlias = tuple[tuple[str, str | None], ...]
"""Names and text values."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """One Parquet file of a table. `path` is relative to the table, as on disk; `partition` holds text values."""

    path: str
    size: int
    partition: Partition
    has_deletion_vector: bool = False


@dataclass(frozen=True, slots=True)
class AppendedFiles:
    """Effect of one table version on a reader of appended rows. Rewritten data (`dataChange` false) does not count.

    `digest`: SHA-256 of the log entry.
    """

    commit: TableCommit
    digest: bytes = b""

    @property
    def version(self) -> int:
        """The table version."""
        return self.commit.version

    @property
    def operation(self) -> str:
        """Name of the operation, as the writer recorded it."""
        return self.commit.operation

    @property
    def added(self) -> list[TableFile]:
        """The files with new rows, in the order of the log."""
        return [_added(body) for body in self.commit.bodies("add") if body.get("dataChange", True)]

    @property
    def changes_rows(self) -> bool:
        """True if the commit does more than append rows. RESTORE counts: it adds files whose rows were in the table
        before.
        """
        removes = any(body.get("dataChange", True) for body in self.commit.bodies("remove"))
        return removes or (self.operation == "RESTORE" and bool(self.added))


def local_root(table: str) -> Path | None:
    """Return the table's folder if it is on a local file system, else None."""
    local = local_path(table)
    return None if local is None else local.absolute()


def location(table: str) -> str:
    """Return the table's place for deltalake: an absolute path or a URI; Hadoop's `s3a` becomes `s3`."""
    root = local_root(table)
    return str(root) if root is not None else table.replace("s3a://", "s3://", 1).rstrip("/")


def filesystem(table: str, storage_options: Mapping[str, str]) -> pafs.FileSystem:
    """Return the table's folder as an Arrow file system, with deltalake's credentials."""
    root = local_root(table)
    if root is not None:
        return pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem())
    return pafs.PyFileSystem(DeltaStorageHandler(location(table), dict(storage_options)))


def open_table(table: str, storage_options: Mapping[str, str], version: int | None = None) -> DeltaTable:
    """Return a fresh handle of the table, of its newest version or of `version`."""
    return DeltaTable(location(table), version=version, storage_options=dict(storage_options) or None)


def identity_of(table: str, opened: DeltaTable | None) -> dict[str, str]:
    """Return the endpoint of a table: its place, and its table id. The id is empty while there is no table."""
    return {"kind": "delta", "path": place_of(table), "table id": str(opened.metadata().id) if opened else ""}


def table_exists(table: str, storage_options: Mapping[str, str]) -> bool:
    """Return True if there is a Delta table."""
    return bool(DeltaTable.is_deltatable(location(table), dict(storage_options) or None))


def read_commit(system: pafs.FileSystem, version: int) -> AppendedFiles | None:
    """Return one commit, or None if the log has no such entry (not yet, or no longer). Raises `LogDamaged`."""
    text = read_entry(system, version)
    if text is None:
        return None
    actions = actions_in(text, commit_path(version), "restore the table's log from a backup")
    return AppendedFiles(TableCommit(version, actions), sha256(text).digest())


def read_entry(system: pafs.FileSystem, version: int) -> bytes | None:
    """Return the bytes of one commit, or None if the log has no such entry."""
    try:
        with system.open_input_file(commit_path(version)) as entry:
            return bytes(entry.read())
    except FileNotFoundError:
        return None


def oldest_readable(system: pafs.FileSystem, newest: int) -> int:
    """Return the oldest version from which the log has every commit up to `newest`; `newest` + 1 if there is none."""
    return oldest_without_gap(_listed(system), newest)


def newest_listed(system: pafs.FileSystem) -> int:
    """Return the newest version whose commit is in the log's folder; -1 if there is none."""
    return max(_listed(system), default=-1)


def _listed(system: pafs.FileSystem) -> Collection[int]:
    return versions_in(info.base_name for info in system.get_file_info(pafs.FileSelector(LOG, allow_not_found=True)))


def snapshot_files(table: str, storage_options: Mapping[str, str], version: int) -> list[TableFile]:
    """Return the files of a table version, oldest first; every call returns the same order.

    Raises `FileNotFoundError` if the version cannot be opened, or if its log is cleaned up meanwhile.
    """
    try:
        opened = open_table(table, storage_options, version)
        adds = pa.table(opened.get_add_actions())
    except DeltaError as error:
        raise FileNotFoundError(f"version {version} cannot be opened any more: {error}") from error
    columns = adds.select(["path", "size_bytes", "modification_time"]).to_pylist()
    partitions = _partition_texts(adds)
    if _has_instants(adds):
        # deltalake takes a text without a zone for UTC.
        paths = [unquote(row["path"]) for row in columns]
        partitions = _partitions_as_written(filesystem(table, storage_options), version, paths)
    # In the order of Spark's own source, by which an adopted offset counts files.
    ordered = sorted(zip(columns, partitions, strict=True), key=lambda each: _age(each[0]))
    # Add actions as deltalake lists them do not say if a file has a deletion vector.
    marked = _with_deletion_vectors(opened)
    return [
        TableFile(unquote(row["path"]), row["size_bytes"], values, row["path"].rpartition("/")[2] in marked)
        for row, values in ordered
    ]


def _with_deletion_vectors(opened: DeltaTable) -> set[str]:
    """Return the names of the files with deleted rows."""
    if "deletionVectors" not in (opened.protocol().reader_features or ()):
        return set()
    paths = pa.table(opened.deletion_vectors()).column("filepath").to_pylist()
    return {str(path).rpartition("/")[2] for path in paths}


def _age(row: Mapping[str, Any]) -> tuple[int, str]:
    return int(row["modification_time"] or 0), str(row["path"])


def _partition_texts(adds: pa.Table) -> list[Partition]:
    if "partition" not in adds.column_names:
        return [()] * adds.num_rows
    values = adds.select(["partition"]).flatten()
    names = [name.removeprefix("partition.") for name in values.column_names]
    texts = [column.cast(pa.string()).to_pylist() for column in values.columns]
    # Without a partition column there is nothing to zip, and each file still needs its empty tuple.
    return [tuple(zip(names, row, strict=True)) for row in zip(*texts, strict=True)] or [()] * adds.num_rows


def _has_instants(adds: pa.Table) -> bool:
    kinds = [field.type for field in adds.schema.field("partition").type] if "partition" in adds.column_names else []
    return any(pa.types.is_timestamp(kind) and kind.tz is not None for kind in kinds)


def _partitions_as_written(system: pafs.FileSystem, version: int, paths: Sequence[str]) -> list[Partition]:
    """Return the partition texts of these files in the log. Raises `FileNotFoundError` if a file is not in the log any more."""
    # Log cleanup may remove a commit after the listing. The next listing has the checkpoint that the cleanup left.
    for _ in range(_LISTINGS):
        found = _partitions_in_log(system)
        if found.keys() >= set(paths):
            return [found[path] for path in paths]
    raise FileNotFoundError(f"version {version} cannot be opened any more: its log was cleaned up")


def _partitions_in_log(system: pafs.FileSystem) -> dict[str, Partition]:
    found: dict[str, Partition] = {}
    # Recursive: sidecars of a checkpoint are in a folder of their own.
    for info in system.get_file_info(pafs.FileSelector(LOG, recursive=True)):
        with suppress(FileNotFoundError, LogDamaged, pa.ArrowException):  # a tmp file, or one that was cleaned up
            for body in _added_in(system, info):
                # In any order: the values of a file never change.
                found[unquote(body["path"])] = _texts_of(body)
    return found


def _added_in(system: pafs.FileSystem, info: pafs.FileInfo) -> Iterator[Mapping[str, Any]]:
    """Yield the bodies of `add` actions in a commit, a checkpoint or a checkpoint's sidecar."""
    import pyarrow.parquet as pq

    if info.extension == "json":
        with system.open_input_file(info.path) as file:
            yield from TableCommit(0, actions_in(file.read(), info.path, "")).bodies("add")
    elif info.extension == "parquet":
        with system.open_input_file(info.path) as file:
            rows = pq.ParquetFile(file).read(["add.path", "add.partitionValues"])
        yield from rows.column("add").drop_null().to_pylist() if "add" in rows.column_names else ()


def _added(body: Mapping[str, Any]) -> TableFile:
    # The log has URI-encoded paths.
    return TableFile(unquote(body["path"]), int(body["size"]), _texts_of(body), bool(body.get("deletionVector")))


def _texts_of(body: Mapping[str, Any]) -> Partition:
    # Delta writes a null partition value as an empty text. A checkpoint has pairs.
    return tuple((str(name), value or None) for name, value in sorted(dict(body.get("partitionValues") or {}).items()))
