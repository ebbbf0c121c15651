"""What a power loss may leave in a Delta log on a local file system, and how it is put right.

delta-rs links a commit into the log before its bytes are on disk.  We fsync it before anybody is told, so a commit
file that is torn (ends in zeros, or at a page) was never acknowledged: nothing was built on it and it can be set
aside.  A checkpoint is derived data.  Nothing is deleted; whatever does not look torn is left alone and reported as
damage.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ckpt.storage_errors import told_of
from spark_ckpt.store import durable

_COMMIT = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint.*\.parquet")
_PAGE = 4096
_HINT = "_last_checkpoint"


def set_aside_torn(log: Path) -> bool:
    """Set torn files of the log folder aside; whether there were any. Raises a `StoreOutage` if it cannot."""
    with told_of(str(log)):
        return _set_aside(log)


def _set_aside(log: Path) -> bool:
    names = sorted(path.name for path in log.iterdir()) if log.is_dir() else []
    commits = [name for name in names if _COMMIT.fullmatch(name)]
    torn = [name for name in names if _CHECKPOINT.fullmatch(name) and not _is_parquet(log / name)]
    if commits and _is_torn(log / commits[-1], first=len(commits) == 1):
        torn.append(commits[-1])
    for name in torn:
        (log / name).rename(log / f"_torn-{name}")
    if torn:
        (log / _HINT).unlink(missing_ok=True)
        durable.sync_folder(log)
    return bool(torn)


def _is_torn(commit: Path, *, first: bool) -> bool:
    content = commit.read_bytes()
    if not content:
        # An empty later commit is a version without actions; without a first one there is no table.
        return first
    if content.endswith(b"\0"):
        return True
    # Cut off at a page: anything else that cannot be parsed may be an acknowledged commit that rotted.
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
    except (pa.ArrowException, OSError):
        return False
    return True
