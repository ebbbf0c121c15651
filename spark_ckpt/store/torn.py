"""Repair of a local Delta log after a power loss: torn files are set aside.

delta-rs links a commit into the log before its bytes are on disk. `delta_log` fsyncs it before the commit is
acknowledged. So a torn commit file (it ends in zeros, or at a page) was never acknowledged: nothing was built on it and
it can be set aside. A checkpoint is derived data. Nothing is deleted. A file that does not look torn is left in place
and reported as damage.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ckpt.storage_errors import typed_errors_at
from spark_ckpt.store import durable

_COMMIT = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint.*\.parquet")
_PAGE = 4096
_HINT = "_last_checkpoint"


def set_aside_torn(log: Path, acknowledged: int | None = None) -> bool:
    """Set torn files of the log folder aside. Return True if there were any. Raises a `StoreOutage` if it fails.

    `acknowledged`: the newest acknowledged version; None if unknown. A defect in it, or before it, is damage and no
    trace of a power loss.
    """
    with typed_errors_at(str(log)):
        names = _names(log)
        torn = [name for name in names if _CHECKPOINT.fullmatch(name) and not _is_parquet(log / name)]
        return _set_aside(log, [*torn, *_torn_commit(log, names, acknowledged)])


def set_aside_torn_commit(log: Path, acknowledged: int) -> bool:
    """Set the newest commit aside if it is torn.

    Return True if it was. This is cheap. Raises a `StoreOutage` if it fails.
    """
    with typed_errors_at(str(log)):
        return _set_aside(log, _torn_commit(log, _names(log), acknowledged))


def _names(log: Path) -> list[str]:
    return sorted(path.name for path in log.iterdir()) if log.is_dir() else []


def _torn_commit(log: Path, names: list[str], acknowledged: int | None) -> list[str]:
    commits = [name for name in names if _COMMIT.fullmatch(name)]
    # Only the newest: the author of a later commit has synced the commits before it, see `LogTable._load`.
    return [name for name in commits[-1:] if _may_be_torn(log / name, len(commits) == 1, acknowledged)]


def _set_aside(log: Path, torn: list[str]) -> bool:
    for name in torn:
        (log / name).rename(log / f"_torn-{name}")
    if torn:
        # The hint may point to a checkpoint that was set aside.
        (log / _HINT).unlink(missing_ok=True)
        durable.sync_folder(log)
    return bool(torn)


def _may_be_torn(commit: Path, first: bool, acknowledged: int | None) -> bool:
    if acknowledged is not None:
        return int(commit.name[:20]) > acknowledged and _is_torn(commit, empty=True)
    # An empty later commit is a version without actions. Without a first commit there is no table.
    return _is_torn(commit, empty=first)


def _is_torn(commit: Path, *, empty: bool) -> bool:
    content = commit.read_bytes()
    if not content:
        return empty
    if content.endswith(b"\0"):
        return True
    # A power loss cuts at a page. Any other content that cannot be parsed may be an acknowledged commit that rotted.
    return len(content) % _PAGE == 0 and not _is_json(content.splitlines()[-1])


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _is_parquet(path: Path) -> bool:
    try:
        pq.read_metadata(path)
    except (pa.ArrowException, OSError, ValueError, KeyError):  # includes column names that are no text
        return False
    return True
