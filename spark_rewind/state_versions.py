"""State versions of a query's operators that Spark can still load."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from spark_ckpt.errors import FormatUnknown
from spark_ckpt.spark_internals.query_logs import StateIds
from spark_ckpt.spark_internals.state_files import (
    Ids,
    StoreFiles,
    UnknownStateFile,
    files_of,
    first_file,
    missing_in_snapshot,
)
from spark_rewind.reading import all_names, numbered_folders

_NO_STORES = ("SSTs", "logs")


@dataclass(frozen=True, slots=True)
class StoreVersions:
    """One store of one partition. Most operators have one, joins may have four.

    `files`: lists its folder, once, if expected names are missing. `looked_up`: cache of the first file that loading a
    version needs.
    """

    folder: Path
    files: Callable[[], StoreFiles]
    ids: Callable[[int], Ids]
    looked_up: dict[int, str | None] = field(default_factory=dict, compare=False)

    def gone(self, version: int) -> str | None:
        """Return the reason why a version cannot be loaded, None if it can."""
        # probing a few names is much cheaper than listing folders of thousands of files
        if self._first(version) is not None or self.files().loadable(version, self.ids):
            return None
        return f"{self.files().missing(version, self.ids)}"

    def torn(self, version: int) -> str | None:
        """Return the missing part of the snapshot that loading a version begins with, None for a complete one."""
        name = self._first(version)
        if name is None:
            name = self.files().snapshot_for(version, self.ids)
        return missing_in_snapshot(self.folder / name) if name else None

    def _first(self, version: int) -> str | None:
        if version not in self.looked_up:
            where = f"{self.folder}{os.sep}"
            found = first_file(version, self.ids, lambda name: os.path.exists(where + name))  # noqa: PTH110 - ten thousand of them
            self.looked_up[version] = found
        return self.looked_up[version]


Partitions = Mapping[int, tuple[StoreVersions, ...]]


@dataclass(frozen=True, slots=True)
class OperatorVersions:
    """One stateful operator. Partitions are numbered from 0; a missing one has no stores.

    `read`: finds the partitions, once, at the first use. A query that stays needs none.
    """

    number: int
    read: Callable[[], Partitions]

    def gone(self, version: int) -> str | None:
        """Return the reason why a version of the operator's state cannot be loaded, None if it can.

        Judges by names of files.
        """
        partitions = self.read()
        # A gap in the numbers is a partition whose folder was lost.
        for partition in range(max(partitions, default=-1) + 1):
            stores = partitions.get(partition, ())
            if not stores:
                return f"operator {self.number}: partition {partition} of the state is missing"
            for store in stores:
                if (missing := store.gone(version)) is not None:
                    where = f"operator {self.number}, partition {partition}"
                    return f"{where}: no state of version {version}, version {missing} is missing"
        return None

    def torn(self, version: int) -> str | None:
        """Return the same judged by the content of its snapshots."""
        for partition, stores in self.read().items():
            for store in stores:
                if (missing := store.torn(version)) is not None:
                    return f"operator {self.number}, partition {partition}: {missing} is missing"
        return None


def read_operators(folder: Path, ids: Mapping[int, StateIds | None], oldest: int) -> tuple[OperatorVersions, ...]:
    """Read all operators of a checkpoint's folder `state`.

    `ids`: state ids that commits name, by version; before `oldest` none is known. One partition of each operator is
    read at once: an unknown state store is refused even if its query stays. Raises `CheckpointUnreadable`,
    `FormatUnknown`; methods of the operators may raise these, too.
    """
    found = []
    for number, path in numbered_folders(folder).items():
        # Partition 0 stands for all of an operator: they have the same stores.
        inner = _inner_stores(path / "0")
        for store in _stores(path / "0", inner, _ids_of(ids, oldest, number, 0)):
            store.files()
        found.append(OperatorVersions(number, cache(partial(_partitions, number, path, inner, ids, oldest))))
    return tuple(found)


def _partitions(
    number: int, folder: Path, inner: Sequence[str], ids: Mapping[int, StateIds | None], oldest: int
) -> Partitions:
    partitions = {
        partition: _stores(path, inner, _ids_of(ids, oldest, number, partition))
        for partition, path in numbered_folders(folder).items()
    }
    # Only checkpoint format 2 names the partitions. Without it a lost folder at the end cannot be noticed here.
    named = [len(each.get(number, ())) for each in ids.values() if each is not None]
    # a partition that commits name and that has no folder was lost
    for partition in range(max(named, default=0)):
        partitions.setdefault(partition, ())
    return partitions


def _inner_stores(partition: Path) -> list[str]:
    """Return the stores' folders in a partition of a join, none for a partition that is a store."""
    return [
        name
        # Names of files have a dot: most need no look at the disk.
        for name in all_names(partition)
        if "." not in name and name[0] != "_" and name not in _NO_STORES and (partition / name).is_dir()
    ]


def _stores(folder: Path, inner: Sequence[str], ids: Callable[[int], Ids]) -> tuple[StoreVersions, ...]:
    paths = [folder / name for name in inner] or [folder]
    return tuple(StoreVersions(path, cache(partial(_files, path)), ids) for path in paths)


def _files(folder: Path) -> StoreFiles:
    try:
        return files_of(name for name in all_names(folder) if "." in name or not (folder / name).is_dir())
    except UnknownStateFile as error:
        hint = "use a version of spark-ckpt that knows this state store; Spark 3.5 to 4.2's own can be read"
        raise FormatUnknown(f"{folder}: {error} is no file of a state store that is known", hint=hint) from error


def _ids_of(ids: Mapping[int, StateIds | None], oldest: int, operator: int, partition: int) -> Callable[[int], Ids]:
    """Return ids by version."""

    def of(version: int) -> Ids:
        # None: which attempt counts is unknown. The empty set below: the files' names have no ids.
        # Versions before the log's first batch are needed, too: their changes may follow a snapshot.
        if version < oldest or version not in ids:
            return None
        named = ids[version]
        partitions = None if named is None else named.get(operator)
        if partitions is None or partition >= len(partitions):
            return frozenset()
        return frozenset(partitions[partition])

    return of
