"""Copy of the state of a query's operators up to a version: files of every store, with their schemas and metadata."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spark_ckpt.errors import FormatUnknown
from spark_ckpt.spark_internals.query_logs import STATE
from spark_ckpt.spark_internals.state_files import TornSnapshot, named_in_snapshot, snapshot_version, versioned
from spark_rewind.checkpoint import QueryCheckpoint
from spark_rewind.durable import link_or_copy, make_folder
from spark_rewind.reading import entries, names

_OF_A_BATCH = re.compile(r"(\d+)(?:_[0-9a-f-]{36})?")
_DESCRIPTIONS = ("_metadata", "_stateSchema")


def copy_state(query: QueryCheckpoint, batch: int, target: Path, *, alone: bool = False) -> None:
    """Copy the state up to the version after the newest finished batch at or before `batch`; none for -1.

    `alone`: copy only the files that loading this version needs.

    Files of attempts that no commit names are left out. Raises `FormatUnknown` for folders of an unknown kind,
    `RewindNotPermitted`.
    """
    finished = [each.number for each in query.batches if each.committed_ms is not None and each.number <= batch]
    if not (query.folder / STATE).is_dir() or not finished:
        return
    make_folder(target / STATE, query.folder / STATE)
    for operator in _folders(query.folder / STATE):
        copied = target / STATE / operator.name
        make_folder(copied, operator)
        for each in _folders(operator):
            if each.name in _DESCRIPTIONS:
                _copy_descriptions(each, copied / each.name, batch)
            elif each.name.isdecimal():
                counts = _Counting(query, operator.name, finished[-1] + 1, alone=alone)
                _copy_partition(each, copied / each.name, counts, batch)
            else:
                raise FormatUnknown(
                    f"{each} is no part of a state that is known", hint="start this query from the beginning yourself"
                )
        _link_all(operator, copied, names(operator))


def _copy_partition(source: Path, target: Path, counts: _Counting, batch: int) -> None:
    """Copy one partition: a store, or several stores in folders of their own."""
    make_folder(target, source)
    needed = _copy_store(source, target, counts)
    for each in _folders(source):
        if each.name in _DESCRIPTIONS:
            _copy_descriptions(each, target / each.name, batch)
        elif each.name in ("SSTs", "logs"):
            make_folder(target / each.name, each)
            wanted = [name for name in names(each) if f"{each.name}/{_of(name)}" in needed]
            _link_all(each, target / each.name, wanted)
        else:
            _copy_partition(each, target / each.name, counts, batch)


class _Counting:
    """Selection of the files of an operator's stores that belong to the state up to a version."""

    def __init__(self, query: QueryCheckpoint, operator: str, newest: int, *, alone: bool) -> None:
        self.newest = newest
        self.alone = alone
        self.ids: dict[int, frozenset[str]] = {}
        for each in query.batches:
            named = (each.state_ids or {}).get(int(operator)) if operator.isdecimal() else None
            if named is not None:
                self.ids[each.number + 1] = frozenset(one for partition in named for one in partition)

    def of(self, listed: list[str]) -> list[str]:
        """Return the files of a store to copy: all, or with `alone` those since the newest snapshot."""
        kept = [name for name in listed if self.has(name)]
        if not self.alone:
            return kept
        first = max((version for name in kept if (version := snapshot_version(_of(name))) is not None), default=0)
        return [name for name in kept if (found := versioned(_of(name))) is not None and found[0] >= first]

    def has(self, name: str) -> bool:
        """Return true for a file or checksum of the committed attempt of a version up to the newest."""
        found = versioned(_of(name))
        if found is None or found[0] > self.newest:
            return False
        return not found[1] or found[1] in self.ids.get(found[0], {found[1]})


def _copy_store(source: Path, target: Path, counts: _Counting) -> set[str]:
    """Link files of selected versions. Return the names of shared files that their snapshots consist of."""
    kept = counts.of(names(source))
    _link_all(source, target, kept)
    return {shared for name in kept for shared in _shared(source / name)}


def _shared(snapshot: Path) -> list[str]:
    """Return the shared files of a snapshot, none for a torn one.

    A torn snapshot belongs to an older version; otherwise the check of the copy finds it.
    """
    if snapshot.suffix != ".zip":
        return []
    try:
        return named_in_snapshot(snapshot)
    except TornSnapshot:
        return []


def _copy_descriptions(source: Path, target: Path, batch: int) -> None:
    """Copy schemas and metadata. Inner folders have one file per batch that wrote one: copy those up to `batch`."""
    make_folder(target, source)
    _link_all(source, target, names(source))
    for each in _folders(source):
        make_folder(target / each.name, each)
        kept = [name for name in names(each) if (found := _OF_A_BATCH.fullmatch(_of(name))) and int(found[1]) <= batch]
        _link_all(each, target / each.name, kept)


def _link_all(source: Path, target: Path, listed: list[str]) -> None:
    for name in listed:
        if not name.endswith(".tmp"):
            link_or_copy(source / name, target / name)


def _of(name: str) -> str:
    """Return the name of the file that a checksum belongs to; other names as they are.

    Hadoop's checksum files are hidden, those of Spark 4.1 are not.
    """
    while name.endswith(".crc"):
        name = name.removesuffix(".crc").removeprefix(".")
    return name


def _folders(folder: Path) -> Iterator[Path]:
    yield from (folder / each.name for each in entries(folder) if each.is_dir())
