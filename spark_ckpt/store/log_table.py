"""The rows of the epoch log: one Delta table, one row per commit, appended by compare-and-swap.

A row is sealed: `digest` is the SHA-256 of `body`, `seal` of all other columns. `brief` holds what the log's state
needs, so that opening a log reads no manifest. `seq` is the table version that the row was committed as. It is the
total order and stays valid when small files are folded into larger ones.

Every commit adds one row, and a row vouches for all rows before it (`continuity`). So a commit that was emptied,
altered or lost is detected. `acknowledged` detects the loss of the newest rows.

A commit costs 60 us (measured) per live file, so small files are folded into one. The fold is an ordinary
compare-and-swap commit that adds a row of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from spark_ckpt.epochs import continuity
from spark_ckpt.epochs.records import FORMAT
from spark_ckpt.errors import EpochDamaged, FormatUnknown, LogDamaged, StoreForeign
from spark_ckpt.storage_errors import outage
from spark_ckpt.store import delta_log
from spark_ckpt.store.acknowledged import Acknowledged, acknowledge, forget_older, newest_acknowledged
from spark_ckpt.store.delta_log import CommitLost, uptime_s
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_content import HINT_DAMAGED, LogContent, LogFile, refuse_if_lacking
from spark_ckpt.store.trim import old_before_ms, trim

SCHEMA = pa.schema(
    [
        ("format", pa.int64()),
        ("seq", pa.int64()),
        ("kind", pa.string()),
        ("epoch", pa.int64()),
        ("incarnation", pa.int64()),
        ("attempt", pa.string()),
        ("time_ms", pa.int64()),
        ("brief", pa.string()),
        ("body", pa.string()),
        ("digest", pa.string()),
        ("seal", pa.string()),
    ]
)
_BRIEF_COLUMNS = [name for name in SCHEMA.names if name != "body"]
FOLD_AFTER = 32
_MERGE_AFTER = 8
_READERS = 8
# Every fold writes a durable checkpoint, after `FOLD_AFTER` rows. So a first read need not sync the commits before.
_SYNC_BACK = 64
# Less than any horizon of `trim`: within it no commit that this process has read was deleted and its number used again.
RESUME_SUSPECT_S = 60.0
_FRESH_S = RESUME_SUSPECT_S / 2
"""Age up to which a row may be proposed on rows that were read earlier."""
_PATH = re.compile(r"(\d{13})-(\d{12})-[0-9a-f]{32}\.parquet")
"""Time a file was written, in ms since 1970, and the table version that it is to be committed as."""


class LogRow(NamedTuple):
    """One row without its body. Times are ms since 1970 UTC. A tuple, because a start creates ten thousand of them."""

    format: int
    seq: int
    kind: str
    epoch: int
    incarnation: int
    attempt: str
    time_ms: int
    brief: str
    digest: str
    seal: str

    @property
    def history(self) -> str:
        """Sum of the seals of all rows before this one, in hexadecimal."""
        return str(json.loads(self.brief).get("history", ""))

    @property
    def acknowledged(self) -> Acknowledged:
        """Acknowledgement of this row, written after its commit is durable."""
        return Acknowledged(self.seq, self.kind, self.epoch, self.seal[:16])


_SEALED = slice(LogRow._fields.index("seal"))
"""Columns that a seal covers."""


@dataclass(frozen=True, slots=True)
class NewRow:
    """A row to append, before it has a version, a time and a seal."""

    kind: str
    epoch: int
    incarnation: int
    attempt: str
    brief: str
    body: str


class LogTable:
    """The rows of the log, read incrementally. Not thread-safe: `EpochLog` serialises the calls."""

    def __init__(
        self,
        location: Location,
        table: DeltaTable,
        now_ms: Callable[[], int],
        acknowledged: Acknowledged | None = None,
    ) -> None:
        self._location = location
        self._table = table
        self._acknowledged = acknowledged
        self._to_acknowledge: set[str] = set()  # attempts whose acknowledgement is not written yet
        self._now_ms = now_ms
        self._content = LogContent()
        self._own: dict[str, LogFile] = {}  # the file of the last append, so that it need not be read back
        self._loaded_version = -1
        self._replaced_version = -1
        self._opened: tuple[str, _Bodies] | None = None
        self._refreshed_at = uptime_s()

    @classmethod
    def open(cls, location: Location, now_ms: Callable[[], int], *, create: bool) -> LogTable | None:
        """Open the log at `location`. Create it without rows if it is missing and `create` is set; else return None.

        Raises `StoreForeign` if the table is no epoch log, `FormatUnknown` if it has other columns, `EpochDamaged` if
        it cannot be read.
        """
        table, acknowledged = _opened(location)
        if table is None and create:
            table = delta_log.create_table(location, SCHEMA, "spark_ckpt: the epoch log of one job")
        if table is None:
            return None
        names = [field.name for field in table.schema().fields]
        # The first three columns identify a log of any format; a difference after them is another version's.
        if names[:3] != SCHEMA.names[:3]:
            raise StoreForeign("this table is not a job's epoch log", table=location.uri, hint="give another location")
        if names != SCHEMA.names:
            raise FormatUnknown("the epoch log has other columns", columns=", ".join(names), hint=_HINT_UPGRADE)
        return cls(location, table, now_ms, acknowledged)

    @property
    def version(self) -> int:
        """Table version that `rows` reflects."""
        return self._loaded_version

    @property
    def rows(self) -> list[LogRow]:
        """All rows in the log's order."""
        return self._content.rows

    @property
    def paths(self) -> frozenset[str]:
        """Paths of the live files of the log."""
        return frozenset(self._content.files)

    @property
    def is_fresh(self) -> bool:
        """True if the rows were the newest ones a short time ago: a row can be proposed on them without reading the log.

        Its append then proves that they still are, because it creates the version right after them.
        """
        return self._loaded_version >= 0 and uptime_s() - self._refreshed_at < _FRESH_S

    def refresh(self) -> None:
        """Read the commits made since the last call. Raises `EpochDamaged`, a `StoreOutage`."""
        # Taken before the read: a commit that comes during the read may be missing from it.
        began_s = uptime_s()
        delta_log.require_log(self._location)
        try:
            delta_log.advance(self._table, self._location)
        except (DeltaError, OSError, ValueError):
            # Commit files that the handle refers to may have been deleted since.
            self._reopen()
        while (version := self._table.version()) != self._loaded_version:
            try:
                self._load(version)
            except EpochDamaged:
                # Files may have been folded into others and deleted since the version was listed.
                self._reopen()
                if self._table.version() == version:
                    raise
        self._refreshed_at = began_s

    def news(self) -> list[LogRow] | None:
        """Return the rows since the last call, in order.

        Return None if rows were dropped, so that all must be folded again.
        """
        return self._content.news()

    def append(self, new: NewRow) -> None:
        """Commit one row durably, as the version right after the loaded one.

        Raises `CommitLost` if another commit has that version. Raises a `StoreOutage` if the version is still free and
        the row is not in the log. The caller may retry after both.
        """
        delta_log.require_log(self._location)
        began_s, version = uptime_s(), self._loaded_version + 1
        # The seal covers the version: if another commit takes it, this row can never become part of the log elsewhere.
        table = _sealed(new, version, self._now_ms(), self._content.weight)
        path = _new_path(self._now_ms(), version)
        # The data file is durable before the commit names it. If the commit is lost, the file is garbage that `trim`
        # deletes.
        size = self._location.write_table(path, table).size_bytes
        # An earlier attempt whose outcome was unknown has not landed, or this version would be taken. Forget its
        # file.
        self._own = {path: LogFile(size, _rows(table), table)}
        action = delta_log.added(path, size, _stats(table), data_change=True)
        # Before the commit: one that raises may have landed, and is then acknowledged after the log was read.
        self._to_acknowledge.add(new.attempt)
        try:
            delta_log.commit(self._table, self._location, [action], SCHEMA, after=self._loaded_version)
        except CommitLost as lost:
            # An error does not tell whether the commit landed, e.g. if only the answer was lost.
            self._resolve(new.attempt, path, lost)
        else:
            if uptime_s() - self._refreshed_at < RESUME_SUSPECT_S:
                self._take({**self._content.files, **self._own}, version)
                self._refreshed_at = began_s
            else:
                self._prove(new.attempt, path)
        self.acknowledge()

    def acknowledge(self) -> None:
        """Record that the newest row appended here is acknowledged: its author may rely on it.

        Repeat after a failure; otherwise a no-op.
        """
        # The row as the log has it: an earlier attempt with this id may have landed, and another time has another seal.
        row = self._content.newest_of(self._to_acknowledge) if self._to_acknowledge else None
        if row is not None:
            self._acknowledged = row.acknowledged
            acknowledge(self._location, self._acknowledged)
            self._to_acknowledge.clear()

    def body(self, row: LogRow) -> str:
        """Return the body of `row`, checked against its digest. Raises `EpochDamaged`."""
        path = self._content.path_of(row)
        try:
            body = self._bodies(path).of(row.seq)
        except EpochDamaged:
            # A fold may have moved the row to another file and deleted this one.
            self.refresh()
            if self._content.path_of(row) == path:
                raise
            return self.body(row)
        if body is None or _sha256(body) != row.digest:
            raise _unlike_digest(row, path)
        return body

    def damages(self) -> list[EpochDamaged]:
        """Read every live file again. Return an error for each that cannot be read, and for each row whose body does not
        match its digest. Raises a `StoreOutage`.

        Opening a log reads no bodies, and most of them are never read: this finds damage before a fold needs them.
        """
        self.refresh()
        found = {path: self._damages_of(path) for path in self._content.files}
        # A file that is missing now was folded into another one meanwhile.
        self.refresh()
        return [error for path, errors in found.items() if path in self._content.files for error in errors]

    def _damages_of(self, path: str) -> list[EpochDamaged]:
        try:
            table = self._location.read_table(path)
            rows = zip(_checked(table, path), table.column("body").to_pylist(), strict=True)
        except EpochDamaged as error:
            return [error]
        return [_unlike_digest(row, path) for row, body in rows if body is None or _sha256(body) != row.digest]

    def fold_if_due(self, extra: Callable[[], NewRow]) -> None:
        """Fold the small files into one if there are `FOLD_AFTER`, and append the row that `extra` returns.

        If another commit comes first, nothing changes.
        """
        if len(self._content.small) < FOLD_AFTER:
            return
        self.refresh()
        # Read again: the rows of other processes are folded as well, and the commit is lost if one of them came first.
        small = self._content.small
        # After _MERGE_AFTER folds, merge the folded files, too: the number of live files stays bounded.
        merging = list(self._content.files) if len(self._content.files) - len(small) >= _MERGE_AFTER else small
        tables: dict[str, pa.Table] = {}
        for path in merging:
            # A damaged file stays as it is, and can be brought back from a backup. The append before this fold has landed,
            # so an error here would end a driver for a body that it may never need.
            with contextlib.suppress(EpochDamaged):
                tables[path] = _whole(self._location, path, self._content.files[path])
        if tables:
            self._replace(tables, {row.seq for path in tables for row in self._content.files[path].rows}, extra())

    def shorten(self, keep: Collection[int], extra: NewRow) -> bool:
        """Drop every row whose `seq` is not in `keep` and append `extra`, in one commit.

        A damaged file with a row to keep stays as it is. Return False if another commit came first. Raises a `StoreOutage`.
        """
        version, kept, tables = self._loaded_version, set(keep), dict[str, pa.Table]()
        for path, file in self._content.files.items():
            try:
                tables[path] = _whole(self._location, path, file)
            except EpochDamaged:
                # Another process may have folded the file into another one and deleted it.
                self.refresh()
                if self._loaded_version != version:
                    return False
                if kept.isdisjoint(row.seq for row in file.rows):
                    tables[path] = SCHEMA.empty_table()
        return self._replace(tables, kept, extra)

    def trim(self, now_ms: int) -> None:
        """Delete old commit files, and old data files that are no part of the table and cannot become so."""
        trim(self._location, [], now_ms)
        before_ms = old_before_ms(self._location, now_ms)
        others = (info.path for info in self._location.list() if info.path not in self._content.files)
        self._location.delete(path for path in others if _is_dead(path, self._loaded_version, before_ms))

    def _replace(self, tables: Mapping[str, pa.Table], keep: AbstractSet[int], extra: NewRow) -> bool:
        """Replace the files of `tables` by one with those of their rows that are in `keep`."""
        version, at_ms = self._loaded_version + 1, self._now_ms()
        rows = pa.concat_tables(sorted(tables.values(), key=_first_seq))
        kept = [seq in keep for seq in rows.column("seq").to_pylist()]
        # Delta's `dataChange` is False for a mere fold: readers of the log as a stream see no row twice.
        dropping = not all(kept)
        # Bodies are megabytes in a job of a thousand tasks: they are copied only if some go.
        kept_rows = rows.filter(pa.array(kept, pa.bool_())) if dropping else rows
        # `extra` vouches for the rows that remain, so that dropped rows do not look like missing ones.
        total = self._content.weight - sum(self._content.files[path].weight for path in tables)
        total += continuity.weight(kept_rows.column("seal").to_pylist())
        new = _sealed(extra, version, at_ms, total)
        # A file has at least one row: those that are kept may all be in damaged files, which stay as they are.
        written = [(kept_rows, dropping), (new, True)] if kept_rows.num_rows else [(new, True)]
        actions: list[AddAction | RemoveAction] = [
            _written(self._location, at_ms, version, rows, data_change=changes) for rows, changes in written
        ]
        actions += [delta_log.removed(old, self._content.files[old].size, data_change=dropping) for old in tables]
        try:
            self._to_acknowledge.add(extra.attempt)
            self._replaced_version = delta_log.commit(
                self._table, self._location, actions, SCHEMA, after=self._loaded_version
            )
        # The two files stay as garbage, which `trim` deletes.
        except CommitLost as lost:
            self.refresh()
            if self._loaded_version < version:
                # No other commit came first: the store refuses this one, and would refuse the caller's next attempts.
                raise outage(self._location.uri, lost) from lost
            return False
        self.refresh()
        self.acknowledge()
        # Only now: the summary row itself is acknowledged and vouches for all rows before it.
        forget_older(self._location, _rows(new)[0].acknowledged)
        self._table = delta_log.checkpoint(self._table, self._location)
        return True

    def _bodies(self, path: str) -> _Bodies:
        """Return the bodies of a file.

        `body` compares each with the digest, whose seal was checked at loading.
        """
        own = self._content.files[path].table
        if own is not None:
            return _Bodies(own)
        if self._opened is None or self._opened[0] != path:
            self._opened = (path, _Bodies(self._location.read_table(path, columns=["seq", "body"])))
        return self._opened[1]

    def _resolve(self, attempt: str, path: str, lost: CommitLost) -> None:
        """Return if the row of `attempt` landed although its commit raised. Otherwise raise."""
        before = self._loaded_version
        self._reopen()
        self.refresh()
        if self._content.newest_of({attempt}):
            return
        self._own.pop(path, None)
        if self._table.version() > before:
            # The version belongs to another commit, so no commit can refer to this file any more.
            self._location.delete([path])
            raise lost
        raise outage(self._location.uri, lost) from lost

    def _prove(self, attempt: str, path: str) -> None:
        """Read the log again after a long pause between its last read and a commit.

        A writer that slept may have written a version that was already used, and whose commit file was deleted since.
        """
        self._reopen()
        self.refresh()
        if not self._content.newest_of({attempt}):
            self._own.pop(path, None)
            raise CommitLost("the log moved on while this process slept")

    def _reopen(self) -> None:
        table, self._acknowledged = _opened(self._location)
        if table is None:
            raise outage(self._location.uri, FileNotFoundError("the epoch log is gone"))
        self._table = table

    def _load(self, version: int) -> None:
        # Own commits are on disk already.
        if version != self._replaced_version:
            # Commits of other processes may be in the page cache only, e.g. if their writer was killed before its fsync.
            # Nothing may be built on them before they are durable.
            first = max(self._loaded_version + 1, version - _SYNC_BACK)
            delta_log.sync_versions(self._location, first, version)
        # A data file never changes, so only files that are new in this version are read.
        known, live = self._content.files, delta_log.live_files(self._table)
        loaded = self._read({path: size for path, size in live.items() if path not in known})
        files = {path: known.get(path) or loaded[path] for path in live}
        # Checked before any of it becomes visible: no caller decides on a log that lacks a row.
        refuse_if_lacking(files.values(), version, self._acknowledged, self._location.uri)
        self._take(files, version)

    def _take(self, files: Mapping[str, LogFile], version: int) -> None:
        self._content.replaced(files)
        self._own.clear()
        self._loaded_version = version

    def _read(self, files: dict[str, int]) -> dict[str, LogFile]:
        own = {path: self._own[path] for path in files if path in self._own}
        others = [path for path in files if path not in own]
        with ThreadPoolExecutor(_READERS) as pool:
            # Threads take longer to start than a few local files to read.
            few = self._location.local is not None and len(others) <= _READERS
            each = map if few else pool.map
            tables = list(each(lambda path: self._location.read_table(path, columns=_BRIEF_COLUMNS), others))
        return own | {
            path: LogFile(files[path], _checked(table, path)) for path, table in zip(others, tables, strict=True)
        }


def _written(location: Location, at_ms: int, version: int, table: pa.Table, *, data_change: bool) -> AddAction:
    path = _new_path(at_ms, version)
    size = location.write_table(path, table).size_bytes
    return delta_log.added(path, size, _stats(table), data_change=data_change)


def _new_path(at_ms: int, version: int) -> str:
    return f"{at_ms:013d}-{version:012d}-{uuid.uuid4().hex}.parquet"


def _opened(location: Location) -> tuple[DeltaTable | None, Acknowledged | None]:
    """Return the table and the newest acknowledged row."""
    # Read before the table is opened: the table must then contain the row.
    acknowledged = newest_acknowledged(location)
    try:
        table = delta_log.open_table(location, None if acknowledged is None else acknowledged.seq)
    except LogDamaged as error:
        what = error.what.replace(delta_log.A_LOG, "the epoch log", 1)
        raise EpochDamaged(what, log=location.uri, hint=HINT_DAMAGED) from error
    if table is None and acknowledged is not None:
        raise EpochDamaged(
            f"the epoch log is gone, but its {acknowledged} was acknowledged", log=location.uri, hint=HINT_DAMAGED
        )
    return table, acknowledged


def _is_dead(path: str, version: int, before_ms: int) -> bool:
    """Return True if a file outside of the table at `version` can be deleted.

    A file is committed as the version in its name or never. One with a later version may belong to a commit under way
    of a writer that sleeps. A file younger than `before_ms` may have readers.
    """
    name = _PATH.fullmatch(path)
    return name is not None and int(name[1]) < before_ms and int(name[2]) <= version


def _sealed(new: NewRow, seq: int, time_ms: int, weight_before: int) -> pa.Table:
    # In the brief, not in a column of its own: the seal covers it, and `Entry` validates it with the record.
    brief = json.dumps({**json.loads(new.brief), "history": continuity.history(weight_before)})
    row = LogRow(FORMAT, seq, new.kind, new.epoch, new.incarnation, new.attempt, time_ms, brief, _sha256(new.body), "")
    columns = {**row._asdict(), "body": new.body, "seal": _seal(row)}
    return pa.table({name: [columns[name]] for name in SCHEMA.names}, schema=SCHEMA)


def _seal(row: LogRow) -> str:
    """SHA-256 of the other columns as a JSON array, in their order."""
    return _sha256(json.dumps(row[_SEALED]))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _rows(table: pa.Table) -> list[LogRow]:
    columns = [table.column(name).to_pylist() for name in LogRow._fields]
    return list(map(LogRow._make, zip(*columns, strict=True)))


def _checked(table: pa.Table, path: str) -> list[LogRow]:
    """Return the rows of the table.

    Raise `EpochDamaged` or `FormatUnknown` for the first row that does not match its seal or format.
    """
    rows = _rows(table)
    for row in rows:
        sealed = row.seal == _seal(row)
        # The seal first: a damaged format number must not be reported as another version.
        if sealed and isinstance(row.format, int) and row.format != FORMAT:
            raise FormatUnknown.of("the store", row.format, FORMAT)
        if not sealed:
            raise EpochDamaged(f"row {row.seq} of the epoch log does not match its seal", hint=HINT_DAMAGED, file=path)
    return rows


def _unlike_digest(row: LogRow, path: str) -> EpochDamaged:
    return EpochDamaged(
        f"{row.acknowledged} of the epoch log does not match its digest",
        hint="restore an older epoch, or the store's folder from a backup",
        file=path,
        seq=row.seq,
    )


def _first_seq(table: pa.Table) -> int:
    """Return the number of a file's first row. Its rows are in order, and all of them before or behind those of another
    file.
    """
    return next(iter(table.column("seq").slice(0, 1).to_pylist()), 0)


def _whole(location: Location, path: str, file: LogFile) -> pa.Table:
    """Return all columns of a file, with every seal compared, before they are written again."""
    if file.table is not None:
        return file.table
    table = location.read_table(path)
    # A damaged row must not get a fresh file that looks valid.
    _checked(table, path)
    return table


class _Bodies:
    """The bodies of a file's rows by `seq`. An index, because retention reads every one."""

    def __init__(self, table: pa.Table) -> None:
        self._column = table.column("body").combine_chunks()
        self._at = {seq: at for at, seq in enumerate(table.column("seq").to_pylist())}

    def of(self, seq: int) -> str | None:
        """Return the body of a row; None if the file does not have the row."""
        body: str | None = self._column[self._at[seq]].as_py() if seq in self._at else None
        return body


def _stats(table: pa.Table) -> str:
    seqs, epochs = table.column("seq").to_pylist(), table.column("epoch").to_pylist()
    least = {"seq": min(seqs, default=0), "epoch": min(epochs, default=0)}
    most = {"seq": max(seqs, default=0), "epoch": max(epochs, default=0)}
    nulls = dict.fromkeys(least, 0)
    return json.dumps({"numRecords": table.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls})


_HINT_UPGRADE = "upgrade spark_ckpt on this machine to the version that wrote the store"
