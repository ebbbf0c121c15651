"""The commit log of Spark's streaming file sink, `_spark_metadata`: the files that its batches have committed.

A failed attempt wrote the files that no entry names, or their batch is still open. Spark's readers leave them out, and
so does this one. A log file holds one batch (`7`) or everything up to a batch (`9.compact`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs

from spark_ckpt.errors import SourceInvalid
from spark_ckpt.spark_internals.query_logs import (
    COMPACT,
    SINK_LOG,
    UnknownFormat,
    Unreadable,
    batch_number,
    parse_file_entries,
)

_ATTEMPTS = 5
"""Number of listings: Spark deletes batch files some minutes after their compaction, also after a listing."""


class _GapError(Exception):
    """A listing lacks a batch before its newest one."""


class SparkSinkLog:
    """Log of the sink that writes to `folder`, a path on `system`. Caches entries: log files never change."""

    def __init__(self, system: pafs.FileSystem, folder: str) -> None:
        self._system = system
        self._folder = folder
        self._committed: dict[str, None] = {}
        self._deleted: set[str] = set()
        self._newest: pafs.FileInfo | None = None
        self._parents: dict[str, str] = {}

    def committed(self) -> Iterable[str]:
        """Return the names of all committed files, relative to the folder, in batch order.

        Raises `SourceInvalid` for a log that cannot be read, has a gap, or names files outside the folder.
        """
        for attempt in range(_ATTEMPTS):
            try:
                self._advance()
                break
            except FileNotFoundError as error:
                if attempt == _ATTEMPTS - 1:
                    raise self._damaged(f"file {error} is listed and cannot be read") from error
            # A listing in several steps may miss a file that is created meanwhile, and have a later one.
            except _GapError as error:
                if attempt == _ATTEMPTS - 1:
                    raise self._damaged(f"batch {error} is missing, and a later one exists") from error
        return self._committed.keys()

    def _advance(self) -> None:
        """Read the batches committed since the last call; read everything again if known batches have changed."""
        logged = self._logged()
        newest = logged[max(logged)] if logged else None
        # Log files never change: the same newest file means that nothing is new.
        if newest is not None and self._newest is not None and _same(newest, self._newest):
            return
        first, known = self._first(logged)
        wanted = range(first, max(logged, default=-1) + 1)
        gap = next((batch for batch in wanted if batch not in logged), None)
        # Spark's log is without a gap. A missing file would leave committed files out for ever.
        if gap is not None:
            raise _GapError(gap)
        # Everything is read again: what the log names no more must not stay.
        if not known:
            self._committed, self._deleted = {}, set()
        self._newest = None  # until everything is read
        for batch in wanted:
            self._add(logged[batch])
        self._newest = newest

    def _logged(self) -> dict[int, pafs.FileInfo]:
        """Return the log file of each batch."""
        selector = pafs.FileSelector(f"{self._folder}/{SINK_LOG}", allow_not_found=True)
        found: dict[int, pafs.FileInfo] = {}
        for info in self._system.get_file_info(selector):
            batch = batch_number(info.base_name) if info.type == pafs.FileType.File else None
            if batch is not None and (batch not in found or info.base_name.endswith(COMPACT)):
                found[batch] = info
        return found

    def _first(self, logged: dict[int, pafs.FileInfo]) -> tuple[int, bool]:
        """Return the first batch to read, and True if all earlier batches are known."""
        compact = max((batch for batch, info in logged.items() if info.base_name.endswith(COMPACT)), default=0)
        if self._newest is not None:
            known = batch_number(self._newest.base_name)
            # A newer compact file has the batches in between, whose own files may be gone.
            if known is not None and compact <= known and known in logged and _same(logged[known], self._newest):
                return known + 1, True
        return compact, False

    def _add(self, info: pafs.FileInfo) -> None:
        with self._system.open_input_stream(info.path) as stream:
            content = stream.read()
        try:
            entries = parse_file_entries(content.decode())
        except (UnknownFormat, Unreadable, UnicodeDecodeError) as error:
            raise self._damaged(f"file {info.base_name}: {error}") from error
        for entry in entries:
            if not entry.get("isDir"):
                self._take(self._relative(entry["path"]), deleted=entry.get("action") == "delete")

    def _take(self, name: str, deleted: bool) -> None:
        if deleted:  # Spark before 3.1 writes deletions
            self._deleted.add(name)
            self._committed.pop(name, None)
        elif name not in self._deleted:
            self._committed[name] = None

    def _relative(self, uri: str) -> str:
        # Spark logs absolute URIs, percent-encoded.
        split = urlsplit(uri)
        path, bucket = unquote(split.path), split.netloc.partition("@")[0]
        # Arrow names an S3 path with its bucket, and Spark logs the path that its own file system has resolved.
        for each in (path, f"{bucket}{path}", self._real(path)):
            name = each.removeprefix(f"{self._folder.rstrip('/')}/")
            if name != each and ".." not in name.split("/"):
                return name
        raise SourceInvalid(
            f"{self._folder}: {SINK_LOG} names the file {uri}, which is not in this folder: the folder was moved or "
            "copied, or has another path for Spark",
            hint=f"give the path that Spark wrote to; in a copy, move {SINK_LOG} away to read every file that is there",
            folder=self._folder,
        )

    def _real(self, path: str) -> str:
        """Return `path` with symbolic links resolved, below the folder as given; unchanged on other file systems."""
        if not isinstance(self._system, pafs.LocalFileSystem):
            return path
        parent, _, name = path.rpartition("/")
        if parent not in self._parents:
            real, here = os.path.realpath(parent), os.path.realpath(self._folder)
            below = real == here or real.startswith(f"{here}/")
            self._parents[parent] = f"{self._folder}{real[len(here) :]}" if below else parent
        return f"{self._parents[parent]}/{name}"

    def _damaged(self, what: str) -> SourceInvalid:
        return SourceInvalid(
            f"{self._folder}: the log of Spark's file sink ({SINK_LOG}) cannot be followed: {what}",
            hint=f"bring {SINK_LOG} back from a backup; to read every file that is there instead, move it away",
            folder=self._folder,
        )


def _same(one: pafs.FileInfo, other: pafs.FileInfo) -> bool:
    # A folder that was emptied and written again has files of the same names in its log.
    return (one.path, one.size, one.mtime_ns) == (other.path, other.size, other.mtime_ns)
