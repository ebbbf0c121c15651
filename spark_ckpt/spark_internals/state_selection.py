"""Selection of the state files in a query's checkpoint that belong to the state after one batch.

A store's folder has files of many versions, of attempts that do not count, and of batches that are over. Spark loads
the newest snapshot up to a version and the changes of every version since.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_ckpt.spark_internals.query_logs import StateIds
from spark_ckpt.spark_internals.state_files import (
    TornSnapshot,
    missing_in_snapshot,
    named_in_snapshot,
    snapshot_version,
    versioned,
)

DESCRIPTIONS = ("_metadata", "_stateSchema")
"""Folders with schemas and metadata of an operator or of a store."""
_SHARED = ("SSTs", "logs")
_OF_A_BATCH = re.compile(r"(\d+)(?:_[0-9a-f-]{36})?")


class UnknownStateFolder(ValueError):
    """A state has a folder of an unknown kind."""


@dataclass(slots=True)
class Selection:
    """Folders and files relative to the folder `state`; a folder comes before its content.

    `oldest`: the oldest version of a store's file among them; None without one. A later selection needs no older one.
    """

    folders: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    oldest: int | None = None


class Counting:
    """Rule for the files of an operator's stores that belong to the state up to version `newest`.

    - `ids`: state ids that commits name, by version.
    - `alone`: only files that loading this version needs.
    """

    def __init__(self, newest: int, ids: Mapping[int, StateIds | None], operator: str, *, alone: bool) -> None:
        self.newest = newest
        self.alone = alone
        self.ids: dict[int, frozenset[str]] = {}
        for version, each in ids.items():
            named = (each or {}).get(int(operator)) if operator.isdecimal() else None
            if named is not None:
                self.ids[version] = frozenset(one for partition in named for one in partition)

    def of(self, listed: list[str], folder: Path) -> list[str]:
        """Return the files of a store to copy: all, or with `alone` those since the newest snapshot that is whole."""
        kept = [name for name in listed if self.has(name)]
        if not self.alone:
            return kept
        first, torn = _newest_whole(kept, folder)
        return [name for name in kept if owner_of(name) not in torn and _version(name) >= first]

    def has(self, name: str) -> bool:
        """Return true for a file or checksum of the committed attempt of a version up to the newest."""
        found = versioned(owner_of(name))
        # Later batches may have written already: Spark does not wait for the commit of the epoch.
        if found is None or found[0] > self.newest:
            return False
        # Without ids of the version's commit, the files of any attempt count.
        return not found[1] or found[1] in self.ids.get(found[0], {found[1]})


def select(state: Path, version: int, batch: int, ids: Mapping[int, StateIds | None], *, alone: bool) -> Selection:
    """Return the files of the folder `state` that belong to a version, which is one more than its batch's number.

    - `batch`: the newest batch whose schemas and metadata count.
    - `ids`: state ids that commits name, by version.
    - `alone`: only what loading this version needs.

    Raises `UnknownStateFolder`, and OSError if the folder changes meanwhile.
    """
    selected = Selection()
    for operator in _folders(state):
        selected.folders.append(operator)
        for name in _folders(state / operator):
            path = f"{operator}/{name}"
            if name in DESCRIPTIONS:
                _describe(state, path, batch, selected)
            elif name.isdecimal():
                _partition(state, path, Counting(version, ids, operator, alone=alone), batch, selected)
            else:
                raise UnknownStateFolder(f"{state / path} is no part of a state that is known")
        selected.files += [f"{operator}/{name}" for name in _names(state / operator)]
    return selected


def owner_of(name: str) -> str:
    """Return the name of the file that a checksum belongs to; other names as they are.

    Hadoop's checksum files are hidden, those of Spark 4.1 are not.
    """
    while name.endswith(".crc"):
        name = name.removesuffix(".crc").removeprefix(".")
    return name


def _partition(state: Path, path: str, counting: Counting, batch: int, selected: Selection) -> None:
    """Select from one partition: a store, or several stores in folders of their own."""
    selected.folders.append(path)
    kept = counting.of(_names(state / path), state / path)
    selected.files += [f"{path}/{name}" for name in kept]
    versions = [_version(name) for name in kept]
    selected.oldest = min(versions if selected.oldest is None else [*versions, selected.oldest], default=None)
    # Only what the kept snapshots name: the folder has files of attempts that do not count.
    needed = {shared for name in kept for shared in _shared(state / path / name)}
    for name in _folders(state / path):
        below = f"{path}/{name}"
        if name in DESCRIPTIONS:
            _describe(state, below, batch, selected)
        elif name in _SHARED:
            selected.folders.append(below)
            wanted = [each for each in _names(state / below) if f"{name}/{owner_of(each)}" in needed]
            selected.files += [f"{below}/{each}" for each in wanted]
        else:
            _partition(state, below, counting, batch, selected)


def _describe(state: Path, path: str, batch: int, selected: Selection) -> None:
    """Select schemas and metadata. Inner folders have one file per batch that wrote one: those up to `batch`."""
    selected.folders.append(path)
    selected.files += [f"{path}/{name}" for name in _names(state / path)]
    for name in _folders(state / path):
        selected.folders.append(f"{path}/{name}")
        for each in _names(state / path / name):
            found = _OF_A_BATCH.fullmatch(owner_of(each))
            if found and int(found[1]) <= batch:
                selected.files.append(f"{path}/{name}/{each}")


def _version(name: str) -> int:
    found = versioned(owner_of(name))
    return -1 if found is None else found[0]


def _newest_whole(names: list[str], folder: Path) -> tuple[int, set[str]]:
    """Return the version of the newest snapshot that is whole, 0 without one, and the torn ones that are no older."""
    owners = {owner_of(name) for name in names}
    snapshots = [(version, name) for name in owners if (version := snapshot_version(name)) is not None]
    first, torn = 0, set[str]()
    # Spark would load the newest one, and fail if a file of it is missing. Older ones are not opened: an epoch captures
    # each partition, and Spark keeps the snapshots of a hundred batches.
    for version, name in sorted(snapshots, reverse=True):
        if version < first:
            break
        if missing_in_snapshot(folder / name) is None:
            first = version
        else:
            torn.add(name)
    return first, torn


def _shared(snapshot: Path) -> list[str]:
    """Return the shared files of a snapshot, none for a torn one."""
    try:
        return named_in_snapshot(snapshot)
    except TornSnapshot:
        # It belongs to an older version; otherwise the load of the copy fails.
        return []


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return sorted(found, key=lambda each: each.name)


def _folders(folder: Path) -> list[str]:
    return [each.name for each in _entries(folder) if each.is_dir()]


def _names(folder: Path) -> list[str]:
    # Spark gives a file its name once it is complete.
    return [each.name for each in _entries(folder) if not each.is_dir() and not each.name.endswith(".tmp")]
