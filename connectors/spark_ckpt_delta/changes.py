"""The files that follow a position in a table, and the errors for a history that is not append-only."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal, cast
from urllib.parse import urlparse

import pyarrow.fs as pafs

from spark_ckpt.connector import Cursor
from spark_ckpt.delta_files import LOG, commit_path
from spark_ckpt.errors import FormatUnknown, LogDamaged, RowsLost, SourceInvalid, SourceSilent
from spark_ckpt_delta.log import (
    AppendedFiles,
    TableFile,
    filesystem,
    newest_listed,
    oldest_readable,
    read_commit,
    read_entry,
    snapshot_files,
)

OnChange = Literal["fail", "skip"]

_FORMAT = 1
_READABLE_FEATURES = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""Reader features without effect on a reader of plain Parquet files, unless a file that it reads uses them."""
_IN_A_NEW_STORE = "; if the job has read this table, start it with a new store: the copy has those rows, too"


@dataclass(frozen=True, slots=True)
class Position:
    """The next file to read: number `index` of the files that `version` added, or of its whole snapshot."""

    table: str
    version: int
    index: int = 0
    snapshot: bool = False

    def cursor(self) -> Cursor:
        """Return the cursor: JSON with keys in fixed order, because Spark compares offsets as text."""
        return {
            "format": _FORMAT,
            "table": self.table,
            "version": self.version,
            "index": self.index,
            "snapshot": self.snapshot,
        }

    @classmethod
    def of(cls, cursor: Mapping[str, Any]) -> Position:
        """Return the position of a cursor. Raises `FormatUnknown`, `SourceInvalid`."""
        if cursor.get("format") != _FORMAT:
            raise FormatUnknown.of("a cursor of a Delta source", cursor.get("format"), _FORMAT)
        table, version, index, snapshot = (cursor.get(name) for name in ("table", "version", "index", "snapshot"))
        # `isinstance` would take True for a number.
        places = all(type(number) is int and number >= 0 for number in (version, index))
        if not isinstance(table, str) or not places or not isinstance(snapshot, bool):
            raise SourceInvalid(f"not a Delta cursor: {str(dict(cursor))[:200]}")
        return cls(table, cast("int", version), cast("int", index), snapshot)

    def following(self) -> Position:
        """Return the position of the first file of the next version."""
        return Position(self.table, self.version + 1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one micro-batch in files and bytes. `last_version` ends a finite read."""

    files: int | None = None
    bytes: int | None = None
    last_version: int | None = None


class History:
    """The files of a table in reading order. Caches the log entries that it read: commits never change.

    `columns`: the fields that the job reads, as JSON. They are those of the table's version `seen`.
    """

    def __init__(
        self,
        table: str,
        storage_options: Mapping[str, str],
        on_change: OnChange,
        columns: Sequence[Mapping[str, Any]],
        seen: int,
    ) -> None:
        self._table = table
        self._storage_options = dict(storage_options)
        self._on_change = on_change
        self._columns = columns
        self._seen = seen
        self._cache: dict[tuple[bool, int], list[TableFile]] = {}
        self._behind: dict[int, int] = {}  # by version of a rewind: the version after those that it wrote again
        self._opened: pafs.FileSystem | None = None
        self._newest_read: AppendedFiles | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader for every task, which needs neither the log nor a connection.
        return self.__dict__ | {"_cache": {}, "_opened": None, "_newest_read": None}

    @property
    def system(self) -> pafs.FileSystem:
        """File system with the table's folder as its root."""
        if self._opened is None:
            self._opened = filesystem(self._table, self._storage_options)
        return self._opened

    def take(self, start: Position, bounds: Bounds) -> tuple[Position, list[TableFile]]:
        """Return the position after one micro-batch and its files after `start`, at least one if there is any."""
        taken: list[TableFile] = []
        size = 0
        for file, after in self._from(start, bounds.last_version):
            if file is not None:
                full = bounds.files is not None and len(taken) >= bounds.files
                size += file.size
                # At least one file, even one above the limit: otherwise the source would stop.
                if taken and (full or (bounds.bytes is not None and size > bounds.bytes)):
                    break
                taken.append(file)
            # A version without data moves the position, too: otherwise each batch would look at it again.
            start = after
        return start, taken

    def between(self, start: Position, end: Position) -> list[TableFile]:
        """Return the files between two positions of `take`; every call returns the same ones.

        Raises `SourceInvalid` if the log does not reach `end`.
        """
        files: list[TableFile] = []
        if start == end:
            return files
        for file, after in self._from(start, None):
            if file is not None:
                files.append(file)
            if after == end:
                return files
        raise SourceInvalid(
            f"{self._table}: the log does not reach version {end.version}, which the job has read",
            hint="the table was replaced or its log was cut; restore it, or start the job again as it is",
        )

    def require(self, position: Position, newest: int) -> None:
        """Raise `RowsLost` unless the log has everything from `position` on. `newest` is the table's current version.

        Raises `SourceInvalid` for a partly read version that it would skip.
        """
        # A job that has read everything is at `newest` + 1, index 0.
        if position.version > newest + 1:
            raise RowsLost(
                f"{self._table} is at version {newest}, the job has read up to {position.version - 1}",
                hint="the log was cut or replaced: restore it",
            )
        # Without its hint at the last checkpoint, a cleaned log would keep a reader waiting.
        if self._files(position) is None and position.version <= newest:
            raise self._cleaned(position.version)
        # An adopted offset may lie within a version that this job skips as a whole.
        if position.index and not position.snapshot and self._on_change == "skip":
            self._require_not_skipped(position.version)

    def past_lost(self, position: Position, newest: int) -> Position:
        """Return the position behind every commit that the log no longer has, and every file that is gone; `position`
        itself if nothing is.

        `newest`: the table's current version. Rows between two lost files are skipped too: a position is one place.
        """
        if position.version > newest + 1:
            return Position(position.table, newest + 1)
        first, oldest = position.version + position.snapshot, oldest_readable(self.system, newest)
        there = position
        if position.snapshot and not self._has_snapshot(position):
            there = position.following()
        if first < oldest:
            there = Position(position.table, oldest)
        for version in range(max(first, oldest), newest + 1):
            commit = read_commit(self.system, version)
            # The job has read these before the rewind, so they are no loss, and none to continue at.
            if commit is not None and _repeats(commit, first):
                there = Position(position.table, version + 1) if there.version == version else there
                continue
            unread = there.index if version == there.version and not there.snapshot else 0
            # None: log cleanup ran since the listing. Versions that change rows are not read, or refused.
            if commit is None or not (commit.changes_rows or self._are_there(commit.added[unread:])):
                there = Position(position.table, version + 1)
        return there

    def _has_snapshot(self, position: Position) -> bool:
        try:
            files = snapshot_files(self._table, self._storage_options, position.version)
        except FileNotFoundError:
            return False
        return self._are_there(files[position.index :])

    def _are_there(self, files: Sequence[TableFile]) -> bool:
        infos = self.system.get_file_info([file.path for file in files]) if files else []
        return all(info.type == pafs.FileType.File for info in infos)

    def _require_not_skipped(self, version: int) -> None:
        """Raise `SourceInvalid` for a partly read version that on_change='skip' skips: its other rows would be lost."""
        commit = self._commit(version)
        if commit is not None and commit.changes_rows:
            raise SourceInvalid(
                f"{self._table}: a part of version {version} ({commit.operation}) was read, which on_change='skip' leaves out",
                hint="let the query that read the part read the whole version, then adopt it again into an empty store",
                version=version,
            )

    def _from(self, position: Position, last_version: int | None) -> Iterator[tuple[TableFile | None, Position]]:
        """Yield each file with the position after it. A version without data yields None and the next position."""
        while last_version is None or position.version <= last_version:
            files = self._files(position)
            if files is None:
                return
            for index in range(position.index, len(files)):
                last = index + 1 == len(files)
                # Spark compares offsets as text, so that a place has one spelling: of the next version at the end.
                yield files[index], position.following() if last else replace(position, index=index + 1)
            following = self._following(position)
            # An empty version, or an adopted offset after the last file of one.
            if position.index >= len(files):
                yield None, following
            position = following

    def _following(self, position: Position) -> Position:
        after = position.following()
        return after if position.snapshot else replace(after, version=self._behind.get(position.version, after.version))

    def _files(self, position: Position) -> list[TableFile] | None:
        key = (position.snapshot, position.version)
        if key not in self._cache:
            files = self._snapshot(position.version) if position.snapshot else self._appended(position)
            if files is None:
                return None
            # Bounds the memory; a dropped entry is read again.
            if len(self._cache) >= 64:
                self._cache.clear()
            self._cache[key] = files
        return self._cache[key]

    def _snapshot(self, version: int) -> list[TableFile]:
        try:
            files = snapshot_files(self._table, self._storage_options, version)
        except FileNotFoundError as error:
            raise RowsLost(
                f"{self._table}: the job has not finished reading the snapshot of version {version}: {error}",
                hint="raise delta.logRetentionDuration and delta.deletedFileRetentionDuration",
            ) from error
        for file in files:
            check_file(self._table, file)
        return files

    def _appended(self, position: Position) -> list[TableFile] | None:
        commit = self._commit(position.version)
        if commit is None:
            # Log cleanup removes commits before a checkpoint only: an absent one after it is still to come.
            if self._last_checkpoint() < position.version:
                return None
            # A writer may have committed this version, and its checkpoint, since the look above.
            commit = self._commit(position.version)
            if commit is None:
                raise self._cleaned(position.version)
        self._check(commit, position.table)
        self._require_same_history(commit)
        made = commit.commit.rewound
        # The first version of a rewind changes nothing if the table is as its slowest reader has it: after an `undo`.
        rolls_back = commit.changes_rows or (made is not None and not made.part)
        if rolls_back and self._on_change == "skip":
            self._pass_rewind(commit)
            return []
        return commit.added

    def _pass_rewind(self, commit: AppendedFiles) -> None:
        """Note the versions that a rewind of plain queries wrote again after `commit`, which rolls the table back.

        A reader of the rewind continues in them; every other one has read them before. Raises `SourceSilent` while some
        are still to come.
        """
        made = commit.commit.rewound
        if made is None or made.part:
            return
        for part in range(1, made.parts + 1):
            again = self._commit(commit.version + part)
            if again is None:
                raise SourceSilent(
                    f"{self._table}: a rewind has written version {commit.version}, and not yet version {commit.version + part}",
                    hint="if its command has died, run it again: `spark-ckpt rewind apply` or `undo` with its plan",
                )
            # Another writer came in between: the rewind rolls the table back once more, after that one.
            if again.commit.rewound != made._replace(part=part):
                return
            self._behind[commit.version] = again.version + 1

    def _commit(self, version: int) -> AppendedFiles | None:
        try:
            commit = read_commit(self.system, version)
        # A program that copies a log file by file shows an entry half written, or empty, for a moment.
        except LogDamaged as error:
            raise self._half_written(version, error.what) from error
        if commit is not None and not commit.commit.actions:
            raise self._half_written(version, f"{commit_path(version)} is empty")
        return commit

    def _half_written(self, version: int, said: str) -> SourceSilent:
        return SourceSilent(
            f"{self._table}: version {version} cannot be read: {said}",
            hint="if a program copies the table, let it end first; else restore the table's log from a backup",
            version=version,
        )

    def _require_same_history(self, commit: AppendedFiles) -> None:
        """Raise `SourceInvalid` if the newest commit that was read has changed: a restored table grows another
        history.
        """
        newest = self._newest_read
        # A replayed batch or a second look at the same version reads older commits.
        if newest is not None and newest.version >= commit.version:
            return
        found = None if newest is None else read_entry(self.system, newest.version)
        if newest is not None and found is not None and sha256(found).digest() != newest.digest:
            raise SourceInvalid(
                f"{self._table}: version {newest.version}, which the job has read, is another commit now",
                hint="the table was restored to an older state and written again: restore its log; or start the job again, "
                "which does not read the rows of this version and older ones",
                version=newest.version,
            )
        self._newest_read = commit

    def _last_checkpoint(self) -> int:
        """Return the version of the last checkpoint, or a later one; -1 if there is none."""
        try:
            with self.system.open_input_file(f"{LOG}/_last_checkpoint") as hint:
                return int(json.loads(hint.read())["version"])
        except FileNotFoundError:
            return -1
        except (ValueError, KeyError, TypeError):
            # Delta takes this file for a hint, and lists the log if it is damaged or half written.
            return newest_listed(self.system)

    def _cleaned(self, version: int) -> RowsLost:
        return RowsLost(
            f"{self._table}: the log no longer has version {version}, which the job still has to read",
            hint="raise delta.logRetentionDuration on the table",
        )

    def _check(self, commit: AppendedFiles, table_id: str) -> None:
        if commit.changes_rows and self._on_change == "fail":
            otherwise = (
                # A rewind writes versions again: after this one come rows that the job has read.
                "to be without the rows that the rewind took back, start the job in a new store, with new sinks and "
                "start='earliest'"
                if commit.commit.rewound is not None
                else f"or begin after this one with start={commit.version + 1}, in a new store: a job that has an epoch does not "
                "use start"
            )
            raise SourceInvalid(
                f"{self._table}: version {commit.version} ({commit.operation}) deletes or updates rows "
                "that were appended "
                "before; a source reads appended rows only",
                hint=f"DeltaSource(..., on_change='skip') leaves out such versions, with the rows that they add; {otherwise}",
                version=commit.version,
            )
        metadata, protocol = commit.commit.body("metaData"), commit.commit.body("protocol")
        if metadata is not None:
            self._check_metadata(metadata, commit.version, table_id)
        if protocol is not None:
            check_readable(self._table, protocol.get("readerFeatures") or (), commit.version)
        # Nothing of a skipped version is read. A DELETE marks rows in a deletion vector, which stays in the log for ever.
        for file in () if commit.changes_rows else commit.added:
            check_file(self._table, file)

    def _check_metadata(self, metadata: Mapping[str, Any], version: int, table_id: str) -> None:
        if metadata["id"] != table_id:
            raise another_table(self._table, version)
        schema = json.loads(metadata["schemaString"])
        check_mapping(self._table, metadata.get("configuration") or {}, schema)
        fields = {field["name"]: field["type"] for field in schema["fields"]}
        # Before the job's start the table may have had fewer columns: they are null in its files. A column that is
        # added later does not matter: a running job reads the columns of its start.
        same = _has_grown_to if version <= self._seen else operator.eq
        changed = [column["name"] for column in self._columns if not same(fields.get(column["name"]), column["type"])]
        if changed:
            again = "start the job again: it then reads the columns that the table has now, so adapt the job to them"
            other = "the rows have other types than the table now: start the job with a new store, and start='earliest'"
            raise SourceInvalid(
                f"{self._table}: version {version} changes or drops columns that the job reads: {', '.join(changed)}",
                hint=again if version > self._seen else other,
                version=version,
            )


def _repeats(commit: AppendedFiles, first: int) -> bool:
    """Return True for a version that a rewind wrote again, unless a reader that begins at version `first` has passed the rewind."""
    made = commit.commit.rewound
    return made is not None and made.part > 0 and commit.version - made.part >= first


def _has_grown_to(before: Any, now: Any) -> bool:
    """Return True if a column's type, None for no column, has become `now` by added columns or fields only."""
    if before is None or before == now:
        return True
    if not isinstance(before, dict) or not isinstance(now, dict) or before.get("type") != now.get("type"):
        return False
    if now.get("type") != "struct":
        return all(
            _has_grown_to(before[part], now[part]) for part in ("elementType", "keyType", "valueType") if part in now
        )
    fields, grown = ({field["name"]: field["type"] for field in each["fields"]} for each in (before, now))
    return fields.keys() <= grown.keys() and all(_has_grown_to(fields.get(name), kind) for name, kind in grown.items())


def check_readable(table: str, features: Sequence[str], version: int) -> None:
    """Refuse reader features that change the meaning of a file's bytes. Raises `SourceInvalid`."""
    unknown = sorted(set(features) - _READABLE_FEATURES)
    if unknown:
        raise SourceInvalid(
            f"{table}: version {version} needs reader features that this source does not know: {', '.join(unknown)}",
            hint=f"read the table through a copy without the feature{_IN_A_NEW_STORE}",
        )


def check_mapping(table: str, configuration: Mapping[str, str | None], schema: Mapping[str, Any]) -> None:
    """Refuse columns that may have other names in the files than in the table. Raises `SourceInvalid`. `schema`: as JSON."""
    mode = configuration.get("delta.columnMapping.mode") or "none"
    # A table that got column mapping later, always by name, keeps the names of its columns in its files, until one is renamed
    # or added. By id, a file may have any names: those of a converted Iceberg table have the names of their time.
    named = [] if mode == "none" else [*_named_otherwise(schema)]
    if named or mode not in ("none", "name"):
        columns = ", ".join(named) or "any column"
        raise SourceInvalid(
            f"{table} uses column mapping ({mode}), and its files may have other names for {columns}, which this source does "
            "not read",
            hint=f"read a copy of the table without delta.columnMapping.mode{_IN_A_NEW_STORE}",
        )


def _named_otherwise(kind: Any) -> Iterator[str]:
    if isinstance(kind, Mapping):
        for field in kind.get("fields", ()):
            if field["metadata"].get("delta.columnMapping.physicalName", field["name"]) != field["name"]:
                yield field["name"]
            yield from _named_otherwise(field["type"])
        for part in ("elementType", "keyType", "valueType"):
            yield from _named_otherwise(kind.get(part))


def check_file(table: str, file: TableFile) -> None:
    """Refuse a file with a deletion vector, or one outside the table's folder. Raises `SourceInvalid`."""
    if file.has_deletion_vector:
        raise SourceInvalid(
            f"{table}: {file.path} has a deletion vector",
            hint=f"run REORG TABLE delta.`{table}` APPLY (PURGE), then start the source again",
        )
    if urlparse(file.path).scheme or file.path.startswith("/"):
        raise SourceInvalid(f"{table} refers to a file outside its folder: {file.path}", hint="read the cloned table")


def another_table(table: str, version: int | None = None) -> SourceInvalid:
    """Return the error for a table that was dropped and re-created under the same path."""
    return SourceInvalid(
        f"{table} is another table than the one whose position the job has",
        hint="it was dropped and re-created: start the job again, which names the confirmation to read the new one",
        version=version,
    )
