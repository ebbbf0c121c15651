"""A Delta table, as its log describes it: the writer of each version, and the versions that can be restored.

The log is read directly (Delta's PROTOCOL.md, "Actions"): no library tells which commit holds which transaction and
which files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from spark_ckpt.delta_files import (
    LOG,
    Action,
    TableCommit,
    actions_in,
    commit_name,
    log_file,
    oldest_without_gap,
    versions_in,
)
from spark_ckpt.errors import CheckpointForeign, LogDamaged
from spark_rewind.positions import LARGEST
from spark_rewind.reading import changed_ms, entries, names, text_of, typed_errors

_HINT = "restore the table's log from a backup, or leave the table out of the plan; nothing was changed"
_SEARCHED_DEEP = 4


@dataclass(frozen=True, slots=True)
class Version:
    """One commit. `transactions`: (application, number) pairs; those of the Delta sink are (query id, batch).

    `added`, `removed`: data files, relative to the table if they lie in it. `fed`: those added files that a stream reads,
    which does not read what OPTIMIZE adds. `restored`: true if a rewind rolled the table back by this commit.
    """

    number: int
    at_ms: int
    operation: str
    transactions: tuple[tuple[str, int], ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    fed: tuple[str, ...] = ()
    restored: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    - `versions`: commits in the log without a gap, oldest first; the newest is the current table. They begin at the
      last rollback, because earlier versions cannot be counted from there.
    - `before`: newest transaction of each application before `versions`.
    - `openable`: oldest version whose list of files the log still gives.
    - `gone`: by version, a data file of the version that is missing.
    - `unfed`: by version, a file that a stream reads there and that is missing.
    - `kept_in`: folders of pinned points with files that the disk has lost. These do not count as missing.
    """

    root: Path
    ids: frozenset[str]
    versions: tuple[Version, ...]
    before: Mapping[str, int]
    openable: int
    gone: Mapping[int, str]
    unfed: Mapping[int, str]
    digest: str
    kept_in: tuple[Path, ...] = ()

    @property
    def newest(self) -> int:
        """Number of its newest version."""
        return self.versions[-1].number

    def restore_gone(self, version: int) -> str | None:
        """Return the reason why the table cannot roll back to a version, None if it can."""
        if version < self.openable:
            return f"the log does not reach back to version {version}, the oldest that it gives is {self.openable}"
        file = self.gone.get(version)
        return None if file is None else f"data file {file} of version {version} is missing (VACUUM)"

    def feed_gone(self, version: int, last: int | None = None) -> str | None:
        """Return the reason why a stream cannot read from a version on, None if it can. `last`: where it ends."""
        oldest = self.versions[0].number
        if version < oldest:
            return f"the table's log has lost version {version}, the oldest is {oldest}"
        last = self.newest if last is None else last
        lost = next((each for each in sorted(self.unfed) if version <= each <= last), None)
        return None if lost is None else f"data file {self.unfed[lost]} of version {lost} is missing (VACUUM)"


def find_tables(folder: Path) -> list[Path]:
    """Find tables in a folder: itself, or those below it, down to four levels.

    Raises `CheckpointUnreadable`, `CheckpointForeign` if there is none.
    """
    found = list(_tables_below(folder, _SEARCHED_DEEP))
    if not found:
        hint = "name a Delta table, or a folder with Delta tables in it"
        raise CheckpointForeign(f"{folder} holds no Delta table: there is no {LOG} in it or below it", hint=hint)
    return found


def _tables_below(folder: Path, levels: int) -> Iterator[Path]:
    if (folder / LOG).is_dir():
        yield folder
    elif levels:
        for each in entries(folder):
            # Spark ignores such folders, too.
            if each.is_dir() and each.name[0] not in "._":
                yield from _tables_below(folder / each.name, levels - 1)


def read_table(root: Path, held: Mapping[str, Path] | None = None) -> Table:
    """Read a table's log; changes nothing.

    `held`: folders of pinned points with data files of the table, by the file's path. Raises `CheckpointUnreadable`,
    `LogDamaged`.
    """
    log = root / LOG
    listed = names(log)
    commits = versions_in(listed)
    if not commits:
        raise LogDamaged(f"{log} holds no commit", hint=_HINT)
    oldest = oldest_without_gap(commits, commits[-1])
    openable = _openable(log, oldest, commits[-1], versions_in(listed, "checkpoint"))
    digest, ids, versions = hashlib.sha256(), set[str](), list[Version]()
    for number in range(oldest, commits[-1] + 1):
        path = log / commit_name(number)
        text = _commit_text(path)
        digest.update(f"\0{number}\0{text}".encode())
        commit = TableCommit(number, _actions(path, text))
        ids.update(str(each.get("id", "")) for each in commit.bodies("metaData"))
        versions.append(_version(path, commit))
    before = _transactions_before(log, listed, oldest) if oldest else {}
    # Offsets of readers name the table's id of their time, and a later metadata action may have another one.
    ids |= _ids_before(log, listed, openable) if oldest else set()
    restored = max((each.number for each in versions if each.restored), default=oldest)
    if restored > oldest:
        # offsets of readers count the new versions since the last rollback: earlier numbers do not compare
        before, versions = _since_restored(before, versions, restored)
        openable = max(openable, restored)
    missing = _missing_files(root, versions)
    kept_in = tuple(sorted({held[path] for path in missing if path in held})) if held else ()
    gone, unfed = _lost(versions, missing - held.keys() if held else missing)
    return Table(
        root, frozenset(ids - {""}), tuple(versions), before, openable, gone, unfed, digest.hexdigest(), kept_in
    )


def _openable(log: Path, oldest: int, newest: int, checkpoints: Sequence[int]) -> int:
    # A checkpoint of the version before the oldest commit serves, too: from there on no commit is missing.
    found = 0 if oldest == 0 else next((each for each in checkpoints if oldest - 1 <= each <= newest), None)
    if found is None:
        raise LogDamaged(f"{log} does not begin at version 0 and has no checkpoint to begin with", hint=_HINT)
    return found


def _commit_text(path: Path) -> str:
    try:
        return text_of(path)
    except FileNotFoundError:
        raise LogDamaged(f"{path} went away while it was read", hint="try again") from None


def _actions(path: Path, text: str) -> Sequence[Action]:
    found = actions_in(text, str(path), _HINT)
    if not found:
        raise LogDamaged(f"{path} is empty", hint=_HINT)
    return found


def _version(path: Path, commit: TableCommit) -> Version:
    info = commit.body("commitInfo") or {}
    stamps = [info.get(name) for name in ("inCommitTimestamp", "timestamp")]
    # A commit need not have a time; the file's own is the next best.
    at_ms = next((stamp for stamp in stamps if isinstance(stamp, int)), None)
    try:
        return Version(
            commit.version,
            changed_ms(path) if at_ms is None else at_ms,
            commit.operation,
            _bounded(commit.transactions),
            tuple(unquote(str(each["path"])) for each in commit.bodies("add")),
            tuple(unquote(str(each["path"])) for each in commit.bodies("remove")),
            tuple(unquote(str(each["path"])) for each in commit.bodies("add") if each.get("dataChange", True)),
            commit.rewound is not None and commit.rewound.part == 0,
        )
    except (KeyError, TypeError, ValueError, FileNotFoundError) as error:
        raise LogDamaged(f"{path} has an action that lacks a field", hint=_HINT) from error


def _since_restored(
    before: Mapping[str, int], versions: Sequence[Version], restored: int
) -> tuple[dict[str, int], list[Version]]:
    """Return the newest transactions up to a rollback, and the versions from there on."""
    found = dict(before)
    for each in versions:
        # In order, so that the lower numbers of the rollback itself replace those before it.
        if each.number <= restored:
            found |= dict(each.transactions)
    return found, [each for each in versions if each.number >= restored]


def _bounded(transactions: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return the transactions unchanged. Raises ValueError for a number that no query reaches."""
    if large := [number for _, number in transactions if abs(number) >= LARGEST]:
        raise ValueError(large[0])
    return tuple(transactions)


def _missing_files(root: Path, versions: Sequence[Version]) -> frozenset[str]:
    """Return files that a commit of the log removed and that the disk has lost."""
    # VACUUM deletes only files that a commit removed
    removed = {path for each in versions for path in each.removed}
    return frozenset(path for path in removed if not lies_elsewhere(path) and not (root / path).exists())


def lies_elsewhere(path: str) -> bool:
    """Return true for a data file that the log names by a URI, as a shallow clone names the files of its source."""
    # Hadoop writes a local file with one slash (file:/lake/...), so `://` does not tell.
    return bool(urlsplit(path).scheme)


def _lost(versions: Sequence[Version], missing: frozenset[str]) -> tuple[dict[int, str], dict[int, str]]:
    """Return versions that hold missing files, and versions where a stream reads them, each with such a file."""
    added: dict[str, int] = {}
    gone: dict[int, str] = {}
    unfed: dict[int, str] = {}
    for version in versions:
        # It was in each version from its addition on, or from the begin of this log, to the one before its removal.
        for path in missing.intersection(version.removed):
            gone |= dict.fromkeys(range(added.get(path, versions[0].number), version.number), path)
        for path in missing.intersection(version.added):
            added[path] = version.number
        for path in missing.intersection(version.fed):
            unfed[version.number] = path
    return gone, unfed


def _transactions_before(log: Path, listed: Iterable[str], oldest: int) -> dict[str, int]:
    """Return the transactions of the newest checkpoint at or before the first commit in the log."""
    rows = [{"txn": row} for row in _checkpoint_rows(log, listed, oldest, "txn")]
    return dict(_bounded(TableCommit(oldest, rows).transactions))


def _ids_before(log: Path, listed: Iterable[str], openable: int) -> set[str]:
    return {str(row["id"]) for row in _checkpoint_rows(log, listed, openable, "metaData")}


def _checkpoint_rows(log: Path, listed: Iterable[str], newest: int, kind: str) -> list[Mapping[str, Any]]:
    """Return actions of one kind in the newest checkpoint up to `newest`."""
    files: dict[int, list[Path]] = {}
    for name in listed:
        if (found := log_file(name)) and found[1] != "json" and found[0] <= newest:
            files.setdefault(found[0], []).append(log / name)
    if not files:
        return []
    rows: list[Mapping[str, Any]] = []
    # A checkpoint may have several parts.
    # These kinds are in the checkpoint's own files, never in sidecars.
    for path in files[max(files)]:
        rows += _json_rows(path, kind) if path.suffix == ".json" else parquet_rows(path, [kind])[kind]
    return rows


def _json_rows(path: Path, kind: str) -> list[Mapping[str, Any]]:
    return [each[kind] for each in _actions(path, _commit_text(path)) if kind in each]


def parquet_rows(path: Path, kinds: Sequence[str]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the actions of these kinds in a checkpoint of the log. Raises `LogDamaged`, `CheckpointUnreadable`.

    Arrow is loaded here: a log that begins at version 0 needs none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # pyarrow's data set module takes longer to load than this file
        with typed_errors(path), pq.ParquetFile(path) as file:
            there = [kind for kind in kinds if kind in file.schema_arrow.names]
            table = file.read(there, use_threads=False)
    except (pa.ArrowException, FileNotFoundError) as error:
        raise LogDamaged(f"{path} cannot be read", hint=_HINT) from error
    return {kind: table.column(kind).drop_null().to_pylist() if kind in there else [] for kind in kinds}
