"""A Delta table's log, commit by commit, as a reader of appended files needs it.

Read directly (PROTOCOL.md, "Actions"), because neither a handle's add actions nor a table version say *which*
files one commit added, in which order, and whether they are new data or rewritten data.
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
    """One Parquet file of a table.

    `path` is relative to the table, as on disk; `partition` holds text values.
    """

    path: str
    size: int
    partition: tuple[tuple[str, str | None], ...]
    has_deletion_vector: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """What one table version changed.

    Rewritten data (`dataChange` false) is left out of `added` and `removed`.
    """

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
        """Whether it does more than append rows: RESTORE adds files again whose rows were there before."""
        return bool(self.removed) or (self.operation == "RESTORE" and bool(self.added))


def local_root(table: str) -> Path | None:
    """The table's folder if it is on a file system, else None."""
    local = local_path(table)
    return None if local is None else local.absolute()


def location(table: str) -> str:
    """The table's place as deltalake takes it: an absolute path or a URI; Hadoop's `s3a` is `s3`."""
    root = local_root(table)
    return str(root) if root is not None else table.replace("s3a://", "s3://", 1).rstrip("/")


def filesystem(table: str, storage_options: Mapping[str, str]) -> pafs.FileSystem:
    """The table's folder as an Arrow file system with the credentials that deltalake takes."""
    root = local_root(table)
    if root is not None:
        return pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem())
    return pafs.PyFileSystem(DeltaStorageHandler(location(table), dict(storage_options)))


def open_table(table: str, storage_options: Mapping[str, str], version: int | None = None) -> DeltaTable:
    """A fresh handle of the table, optionally of an older version."""
    return DeltaTable(location(table), version=version, storage_options=dict(storage_options) or None)


def identity_of(table: str, opened: DeltaTable | None) -> dict[str, str]:
    """What a job remembers a table by: its place, and the id that it was created with, empty if there is none yet."""
    return {"kind": "delta", "path": place_of(table), "table id": str(opened.metadata().id) if opened else ""}


def table_exists(table: str, storage_options: Mapping[str, str]) -> bool:
    """Whether a Delta table is there."""
    return bool(DeltaTable.is_deltatable(location(table), dict(storage_options) or None))


def commit_path(version: int) -> str:
    """The log entry of a version, relative to the table."""
    return f"_delta_log/{version:020d}.json"


def read_commit(system: pafs.FileSystem, version: int) -> Commit | None:
    """One commit, or None if the log has no such entry (not yet, or not any more)."""
    text = read_entry(system, version)
    if text is None:
        return None
    return _commit(version, [json.loads(line) for line in text.splitlines() if line.strip()], sha256(text).digest())


def read_entry(system: pafs.FileSystem, version: int) -> bytes | None:
    """The bytes of one commit; None as above."""
    try:
        with system.open_input_file(commit_path(version)) as entry:
            return bytes(entry.read())
    except FileNotFoundError:
        return None


def oldest_readable(system: pafs.FileSystem, newest: int) -> int:
    """The oldest version from which every commit up to `newest` is in the log; `newest` + 1 if none."""
    found = {info.base_name for info in system.get_file_info(pafs.FileSelector("_delta_log", allow_not_found=True))}
    version = newest + 1
    while version > 0 and os.path.basename(commit_path(version - 1)) in found:  # noqa: PTH119 - not a local path
        version -= 1
    return version


def snapshot_files(table: str, storage_options: Mapping[str, str], version: int) -> list[TableFile]:
    """The files of a table version, oldest first; the same order on every call."""
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
    """Names of the files some of whose rows are deleted."""
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
    # An empty text means null in Delta's partition values.
    partition = tuple((str(name), value or None) for name, value in values)
    return TableFile(unquote(body["path"]), int(body["size"]), partition, bool(body.get("deletionVector")))
