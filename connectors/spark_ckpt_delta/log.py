"""Reads a Delta table's log commit by commit, as a source of appended files needs it.

The log is read directly (PROTOCOL.md, "Actions"). Neither a handle's add actions nor a table version tell three things:
the files that one commit added, their order, and if they are new or rewritten data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from spark_ckpt.place import local_path, place_of


@dataclass(frozen=True, slots=True)
class TableFile:
    """One Parquet file of a table. `path` is relative to the table, as on disk; `partition` holds text values."""

    path: str
    size: int
    partition: tuple[tuple[str, str | None], ...]
    has_deletion_vector: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """The changes of one table version. `added` and `removed` omit rewritten data (`dataChange` false)."""

    version: int
    added: tuple[TableFile, ...] = ()
    removed: int = 0
    operation: str = "an unknown operation"
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    transactions: tuple[tuple[str, int], ...] = ()
    digest: bytes = b""

    @property
    def changes_rows(self) -> bool:
        """True if the commit does more than append rows. RESTORE counts: it adds files whose rows were in the table
        before.
        """
        return bool(self.removed) or (self.operation == "RESTORE" and bool(self.added))


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


def commit_path(version: int) -> str:
    """Return the path of a version's log entry, relative to the table."""
    return f"_delta_log/{version:020d}.json"


def read_commit(system: pafs.FileSystem, version: int) -> Commit | None:
    """Return one commit, or None if the log has no such entry (not yet, or no longer)."""
    text = read_entry(system, version)
    if text is None:
        return None
    return _commit(version, [json.loads(line) for line in text.splitlines() if line.strip()], sha256(text).digest())


def read_entry(system: pafs.FileSystem, version: int) -> bytes | None:
    """Return the bytes of one commit, or None if the log has no such entry."""
    try:
        with system.open_input_file(commit_path(version)) as entry:
            return bytes(entry.read())
    except FileNotFoundError:
        return None


def oldest_readable(system: pafs.FileSystem, newest: int) -> int:
    """Return the oldest version from which the log has every commit up to `newest`; `newest` + 1 if there is none."""
    found = {info.base_name for info in system.get_file_info(pafs.FileSelector("_delta_log", allow_not_found=True))}
    version = newest + 1
    while version > 0 and os.path.basename(commit_path(version - 1)) in found:  # noqa: PTH119 - not a local path
        version -= 1
    return version


def snapshot_files(table: str, storage_options: Mapping[str, str], version: int) -> list[TableFile]:
    """Return the files of a table version, oldest first; every call returns the same order.

    Raises `FileNotFoundError` if the version cannot be opened.
    """
    try:
        opened = open_table(table, storage_options, version)
        adds = pa.table(opened.get_add_actions())
    except DeltaError as error:
        raise FileNotFoundError(f"version {version} cannot be opened any more: {error}") from error
    columns = adds.select(["path", "size_bytes", "modification_time"]).to_pylist()
    partitions = _partition_texts(adds)
    ordered = sorted(zip(columns, partitions, strict=True), key=lambda each: _age(each[0]))
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


def _partition_texts(adds: pa.Table) -> list[tuple[tuple[str, str | None], ...]]:
    if "partition" not in adds.column_names:
        return [()] * adds.num_rows
    values = adds.select(["partition"]).flatten()
    names = [name.removeprefix("partition.") for name in values.column_names]
    texts = [column.cast(pa.string()).to_pylist() for column in values.columns]
    return [tuple(zip(names, row, strict=True)) for row in zip(*texts, strict=True)] or [()] * adds.num_rows


def _commit(version: int, actions: Sequence[Mapping[str, Any]], digest: bytes) -> Commit:
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for action in actions:
        for kind, body in action.items():
            by_kind.setdefault(kind, []).append(body)
    info = next(iter(by_kind.get("commitInfo", [])), {})
    return Commit(
        version,
        added=tuple(_added(body) for body in by_kind.get("add", []) if body.get("dataChange", True)),
        removed=sum(1 for body in by_kind.get("remove", []) if body.get("dataChange", True)),
        operation=str(info.get("operation", "an unknown operation")),
        metadata=next(iter(by_kind.get("metaData", [])), None),
        protocol=next(iter(by_kind.get("protocol", [])), None),
        transactions=tuple((str(body["appId"]), int(body["version"])) for body in by_kind.get("txn", [])),
        digest=digest,
    )


def _added(body: Mapping[str, Any]) -> TableFile:
    values = sorted((body.get("partitionValues") or {}).items())
    # Delta writes a null partition value as an empty text.
    partition = tuple((str(name), value or None) for name, value in values)
    return TableFile(unquote(body["path"]), int(body["size"]), partition, bool(body.get("deletionVector")))
