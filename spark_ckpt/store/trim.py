"""Trim a Delta table's own log before a checkpoint, without losing a version that a reader may still request.

Three conditions allow the deletion of a commit file: it is older than the horizon, a durable checkpoint follows it, and
no kept version is rebuilt from it. A kept version far back gets its own checkpoint, so that it does not keep the whole
log.

Deleting a file makes its version number free again. A writer that slept must not take that number unnoticed. Two rules
prevent that:

- `LogTable.append` reads the log again when a minute has passed since its last read. That is less than any horizon. In an
  object store the times of its own listing count, too: the clock of this host may be ahead.
- On a file system the oldest commit is deleted first. So the number before a free one is free, too, and
  `delta_log.commit` requires that predecessor.

The second rule does not depend on clocks. Kept versions may precede a free number, but only in tables that follow the
epoch log and decide nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import takewhile

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_ckpt.delta_files import LOG, TableCommit
from spark_ckpt.errors import EpochDamaged, LogDamaged, StoreOutage
from spark_ckpt.store import delta_log
from spark_ckpt.store.copied_log import listed_log
from spark_ckpt.store.location import FileInfo, Location
from spark_ckpt.store.schemas import read_schema

HORIZON_MS = 3_600_000
"""Minimum age of a commit file before it is deleted: one hour."""
LOCAL_HORIZON_MS = 300_000
"""Minimum age on a file system.

There a commit costs 3 to 4 us per file in the log folder (measured). An epoch per batch makes thousands of files in an
hour. An object store lists from a version on.
"""
TRIM_EVERY_MS = 60_000
"""Time that a store waits between two trims."""

_WORTHWHILE = 32
"""Minimum number of files to delete, because each trim writes a checkpoint."""


def old_before_ms(location: Location, now_ms: int) -> int:
    """Return the time before which commits are old enough to be deleted; ms since 1970 UTC, as `now_ms`."""
    return now_ms - (HORIZON_MS if location.local is None else LOCAL_HORIZON_MS)


def trim(location: Location, keep_versions: Collection[int], now_ms: int) -> int:
    """Delete old log files that neither `keep_versions` nor readers of the newest version need. Return their number.

    A log with an unreadable commit, or one that another process trims, is left unchanged. `now_ms`: ms since 1970 UTC.
    """
    files = listed_log(location)
    commits = _old_in_store(location, files)
    checkpoints = {version for version, kind in files if kind != "json"}
    try:
        end = _first_young(location, commits, old_before_ms(location, now_ms))
    except (LogDamaged, FileNotFoundError):
        return 0
    # Readers of the newest version begin at this checkpoint and need no commit before it.
    bound = max((version for version in checkpoints if version <= end), default=0)
    spared = {version for version in keep_versions if version < bound}
    gone = [info.path for (version, _), info in sorted(files.items()) if version < bound and version not in spared]
    # Checkpoints first, and only if they can be read back: deletion is safe only after that.
    if len(gone) < _WORTHWHILE or not _checkpointed(location, spared - checkpoints, bound):
        return 0
    location.delete(gone)
    return len(gone)


def _old_in_store(location: Location, files: Mapping[tuple[int, str], FileInfo]) -> list[int]:
    """Return the versions of commits that are old by the store's own clock; on a file system all of them."""
    commits = {version: info.modified_ms for (version, kind), info in sorted(files.items()) if kind == "json"}
    if location.local is not None:
        return list(commits)  # the second rule needs no clock
    # The newest file was written now at the latest.
    before_ms = old_before_ms(location, max((info.modified_ms for info in files.values()), default=0))
    return list(takewhile(lambda version: commits[version] < before_ms, commits))


def _first_young(location: Location, commits: Sequence[int], older_than_ms: int) -> int:
    """Return the first version committed at `older_than_ms` or later. Commit times grow along the log."""
    # By halves, since each look at a commit is a request to an object store.
    first = bisect_left(commits, older_than_ms, key=partial(_committed_ms, location))
    return commits[first] if first < len(commits) else commits[-1] if commits else 0


def _committed_ms(location: Location, version: int) -> int:
    info = TableCommit(version, delta_log.actions_of(location, version)).body("commitInfo") or {}
    return int(info.get("timestamp", 0))


def _checkpointed(location: Location, versions: Collection[int], bound: int) -> bool:
    """Write checkpoints for these versions. Return True if they and the checkpoint of `bound` can be read back."""
    try:
        for version in versions:
            with delta_log.panics_as_errors():
                table = DeltaTable(location.uri, version=version, storage_options=dict(location.storage_options))
            delta_log.checkpoint(table, location)
        for version in (*versions, bound):
            read_schema(location, f"{LOG}/{version:020d}.checkpoint.parquet")
        newest = delta_log.open_table(location)
        if newest is not None:
            # The hint file points to the checkpoint written last, which has to be the newest one.
            delta_log.checkpoint(newest, location)
    except (DeltaError, EpochDamaged, StoreOutage):
        return False
    return True
