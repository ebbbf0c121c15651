"""Staged files: compared with the committed manifest before they become part of a table, deleted if no commit names them.

A full VACUUM removes files of dead attempts after the table's retention, like any unreferenced file. `remove_orphans` does
it by name, for one sink.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow.fs as pafs

from spark_ckpt.connector import EpochOutput, SinkContext, StagedFile
from spark_ckpt.content import check, check_size, damaged
from spark_ckpt.delta_files import LOG
from spark_ckpt.storage_errors import outage, taken_away
from spark_ckpt_delta.log import filesystem, local_root, open_table

KEPT_MS = 7 * 24 * 3_600_000
"""Delta's own retention of unreferenced files: a younger file may belong to a writer that is about to commit."""


def find_orphans(
    table: str,
    context: SinkContext,
    storage_options: Mapping[str, str],
    unpublished: Collection[str] = (),
    older_than_ms: int = KEPT_MS,
) -> list[str]:
    """Return the paths, relative to the table, of this sink's staged files that are garbage. A garbage file

    - was staged by an incarnation before `context.incarnation`;
    - is named by no commit, not even as a removed file, which time travel still reads;
    - is not in `unpublished`, the base names of all files of committed, unpublished epochs;
    - is older than `older_than_ms`.

    The age protects another job whose sink has the same name: file names carry the sink and the incarnation, not the
    store.
    """
    opened = open_table(table, storage_options)
    # Without `full`, deltalake's dry run lists removed files only: those that time travel still reads.
    removed = opened.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)
    # By name: one list has URIs, the other relative paths, and a staged file's name has a UUID.
    known = {_base_name(path) for path in [*opened.file_uris(), *removed]} | set(unpublished)
    infos = filesystem(table, storage_options).get_file_info(pafs.FileSelector("", recursive=True))
    files = [info for info in infos if info.type == pafs.FileType.File]
    # The newest file was written now at the latest: this host's clock may be ahead of the storage's, which dates the files.
    newest_ns = min(time.time_ns(), max((info.mtime_ns or 0 for info in files), default=0)) - older_than_ms * 1_000_000
    return sorted(
        info.path
        for info in files
        if not info.path.startswith(LOG)
        and _staged_by_the_dead(context, info.base_name)
        and info.base_name not in known
        and (info.mtime_ns or 0) <= newest_ns
    )


def remove_orphans(
    table: str,
    context: SinkContext,
    storage_options: Mapping[str, str],
    unpublished: Collection[str] = (),
    older_than_ms: int = KEPT_MS,
) -> list[str]:
    """Delete the files of `find_orphans` and return their paths. Call it after committed epochs are published."""
    system = filesystem(table, storage_options)
    found = find_orphans(table, context, storage_options, unpublished, older_than_ms)
    for path in found:
        system.delete_file(path)
    return found


def _staged_by_the_dead(context: SinkContext, name: str) -> bool:
    found = re.fullmatch(rf"ckpt-{re.escape(context.sink)}-i(\d+)-b\d+-[^/]*\.parquet", name)
    return found is not None and int(found[1]) < context.incarnation


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


_READERS = 4


def verified(output: EpochOutput, sink: str) -> Sequence[pafs.FileInfo]:
    """Read and compare every byte of the epoch's files, and return their file system information, in the same order.

    Raises `EpochDamaged` for the first file that differs from the manifest. Raises a `StoreOutage` if a file cannot be
    read for now. Files are read block by block, several at a time.
    """
    found, system = present(output, sink), filesystem(output.root, output.storage_options)
    try:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="ckpt-delta-verify") as pool:
            # A file without a digest was compared by its size only. `list` raises the first error in the files' order.
            read = partial(_check, system, _where(output, sink))
            list(pool.map(read, [file for file in output.files if file.sha256]))
    except OSError as error:
        raise outage(output.root, error) from error
    return found


def present(output: EpochOutput, sink: str) -> Sequence[pafs.FileInfo]:
    """Return the file system information of the epoch's files, in their order, after a comparison of their sizes.

    Raises as `verified`.
    """
    system = filesystem(output.root, output.storage_options)
    try:
        found: Sequence[pafs.FileInfo] = system.get_file_info([file.path for file in output.files])
        # A table's folder that is not mounted lacks every file. That is an outage and no damage.
        if taken_away(local_root(output.root)):
            raise FileNotFoundError(f"there is no folder {output.root}")
        for file, info in zip(output.files, found, strict=True):
            # None: the file is missing.
            check_size(file, info.size if info.type == pafs.FileType.File else None, **_where(output, sink))
    except OSError as error:
        raise outage(output.root, error) from error
    return found


def _where(output: EpochOutput, sink: str) -> dict[str, object]:
    return {"epoch": output.epoch, "sink": sink, "root": output.root}


def _check(system: pafs.FileSystem, where: dict[str, object], file: StagedFile) -> None:
    try:
        stream = system.open_input_file(file.path)
    except FileNotFoundError:
        raise damaged(file.path, "is missing", **where) from None
    with stream:
        check(file, stream, **where)
