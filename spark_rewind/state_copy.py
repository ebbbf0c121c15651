"""The state of a query's operators up to a version: the files of every store, and what says how they are to be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spark_ckpt.errors import FormatUnknown
from spark_ckpt.spark_internals.query_logs import STATE
from spark_ckpt.spark_internals.state_files import TornSnapshot, named_in_snapshot, snapshot_version, versioned
from spark_rewind.checkpoint import Checkpoint
from spark_rewind.durable import link_or_copy, make_folder
from spark_rewind.reading import entries, names

_OF_A_BATCH = re.compile(r"(\d+)(?:_[0-9a-f-]{36})?")
_DESCRIPTIONS = ("_metadata", "_stateSchema")


def copy_state(query: Checkpoint, batch: int, target: Path, *, alone: bool = False) -> None:
    """State up to the version after the newest finished batch that is not later than `batch`; nothing for -1.

    `alone`: only the files that loading this one version needs.

    Files of attempts that a commit does not name are left out. Raises `FormatUnknown` for folders of an unknown kind,
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
                raise FormatUnknown(f"{each} is no part of a state that is known", hint="begin this query anew by hand")
        _link_all(operator, copied, names(operator))


def _copy_partition(source: Path, target: Path, counts: _Counting, batch: int) -> None:
    """One partition: a store, or several in folders of their own."""
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
    """Which files of an operator's stores are of the state up to a version."""

    def __init__(self, query: Checkpoint, operator: str, newest: int, *, alone: bool) -> None:
        self.newest = newest
        self.alone = alone
        self.ids: dict[int, frozenset[str]] = {}
        for each in query.batches:
            named = (each.state_ids or {}).get(int(operator)) if operator.isdecimal() else None
            if named is not None:
                self.ids[each.number + 1] = frozenset(one for partition in named for one in partition)

    def of(self, listed: list[str]) -> list[str]:
        """Those of a store's files that are wanted: all, or from the newest snapshot on."""
        kept = [name for name in listed if self.has(name)]
        if not self.alone:
            return kept
        first = max((version for name in kept if (version := snapshot_version(_of(name))) is not None), default=0)
        return [name for name in kept if (found := versioned(_of(name))) is not None and found[0] >= first]

    def has(self, name: str) -> bool:
        """Whether a file, or what a checksum is of, is of a version that counts, and of the attempt that was committed."""
        found = versioned(_of(name))
        if found is None or found[0] > self.newest:
            return False
        return not found[1] or found[1] in self.ids.get(found[0], {found[1]})


def _copy_store(source: Path, target: Path, counts: _Counting) -> set[str]:
    """Files of versions that count; the names of what their snapshots consist of beside themselves."""
    kept = counts.of(names(source))
    _link_all(source, target, kept)
    return {shared for name in kept for shared in _shared(source / name)}


def _shared(snapshot: Path) -> list[str]:
    """A snapshot that is torn is of an older version, or the copy is found to be not whole when it is read back."""
    if snapshot.suffix != ".zip":
        return []
    try:
        return named_in_snapshot(snapshot)
    except TornSnapshot:
        return []


def _copy_descriptions(source: Path, target: Path, batch: int) -> None:
    """Schemas and metadata. Those in folders of their own have a file for each batch that wrote one: up to `batch`."""
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
    """What a checksum is of: Hadoop's are hidden, those of Spark 4.1 are not. Any other name as it is."""
    while name.endswith(".crc"):
        name = name.removesuffix(".crc").removeprefix(".")
    return name


def _folders(folder: Path) -> Iterator[Path]:
    yield from (folder / each.name for each in entries(folder) if each.is_dir())
