"""Verifies staged files against the committed manifest before any of them becomes part of a table."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow.fs as pafs

from spark_ckpt.connector import EpochOutput, StagedFile
from spark_ckpt.content import check, check_size, damaged
from spark_ckpt.storage_errors import outage, taken_away
from spark_ckpt_delta.log import filesystem, local_root

_READERS = 4


def verified(output: EpochOutput, sink: str) -> Sequence[pafs.FileInfo]:
    """Read and compare every byte of the epoch's files, and return their file system information, in the same order.

    Raises `EpochDamaged` for the first file that differs from the manifest. Raises a `StoreOutage` if a file cannot be
    read for now. Files are read block by block, several at a time.
    """
    system = filesystem(output.root, output.storage_options)
    where = {"epoch": output.epoch, "sink": sink, "root": output.root}
    try:
        found: Sequence[pafs.FileInfo] = system.get_file_info([file.path for file in output.files])
        if taken_away(local_root(output.root)):
            raise FileNotFoundError(f"there is no folder {output.root}")
        for file, info in zip(output.files, found, strict=True):
            check_size(file, info.size if info.type == pafs.FileType.File else None, **where)
        with ThreadPoolExecutor(_READERS, thread_name_prefix="ckpt-delta-verify") as pool:
            list(pool.map(partial(_check, system, where), [file for file in output.files if file.sha256]))
    except OSError as error:
        raise outage(output.root, error) from error
    return found


def _check(system: pafs.FileSystem, where: dict[str, object], file: StagedFile) -> None:
    try:
        stream = system.open_input_file(file.path)
    except FileNotFoundError:
        raise damaged(file.path, "is missing", **where) from None
    with stream:
        check(file, stream, **where)
