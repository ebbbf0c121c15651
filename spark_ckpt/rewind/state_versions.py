"""The state of a query's operators: which versions Spark could still load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_ckpt.errors import FormatUnknown
from spark_ckpt.rewind.reading import entries, names, numbered_folders
from spark_ckpt.spark_private.query_logs import StateIds
from spark_ckpt.spark_private.state_files import (
    Ids,
    StoreFiles,
    UnknownStateFile,
    files_of,
    missing_in_snapshot,
)

_NO_STORES = ("SSTs", "logs")


@dataclass(frozen=True, slots=True)
class Store:
    """One store of one partition; most operators have one, joins may have four."""

    folder: Path
    files: StoreFiles
    ids: Callable[[int], Ids]
    loadable: frozenset[int]

    def gone(self, version: int) -> str | None:
        """Why a version cannot be loaded."""
        if version in self.loadable:
            return None
        return f"{self.files.missing(version, self.ids)}"

    def torn(self, version: int) -> str | None:
        """Why the snapshot that loading begins with is not whole."""
        name = self.files.snapshot_for(version, self.ids)
        return None if name is None else missing_in_snapshot(self.folder / name)


@dataclass(frozen=True, slots=True)
class Operator:
    """One stateful operator. Partitions are numbered from 0; one that is missing has no stores."""

    number: int
    partitions: Mapping[int, tuple[Store, ...]]

    def gone(self, version: int) -> str | None:
        """Why a version of the operator's state cannot be loaded, by the names of its files."""
        for partition in range(max(self.partitions, default=-1) + 1):
            stores = self.partitions.get(partition, ())
            if not stores:
                return f"operator {self.number}: partition {partition} of the state is missing"
            for store in stores:
                if (missing := store.gone(version)) is not None:
                    where = f"operator {self.number}, partition {partition}"
                    return f"{where}: no state of version {version}, version {missing} is missing"
        return None

    def torn(self, version: int) -> str | None:
        """The same by what its snapshots contain."""
        for partition, stores in self.partitions.items():
            for store in stores:
                if (missing := store.torn(version)) is not None:
                    return f"operator {self.number}, partition {partition}: {missing} is missing"
        return None


def read_operators(folder: Path, ids: Mapping[int, StateIds | None], oldest: int) -> tuple[Operator, ...]:
    """All operators in a checkpoint's folder `state`. `ids`: those that commits name, by version; before `oldest` none is known.

    Raises `CheckpointUnreadable`, `FormatUnknown`.
    """
    return tuple(_operator(number, path, ids, oldest) for number, path in numbered_folders(folder).items())


def _operator(number: int, folder: Path, ids: Mapping[int, StateIds | None], oldest: int) -> Operator:
    partitions = {
        partition: _stores(path, _ids_of(ids, oldest, number, partition))
        for partition, path in numbered_folders(folder).items()
    }
    named = [len(each.get(number, ())) for each in ids.values() if each is not None]
    for partition in range(max(named, default=0)):
        partitions.setdefault(partition, ())
    return Operator(number, partitions)


def _stores(folder: Path, ids: Callable[[int], Ids]) -> tuple[Store, ...]:
    inner = [
        each.name
        for each in entries(folder)
        if each.is_dir() and each.name[0] not in "_." and each.name not in _NO_STORES
    ]
    return tuple(_store(folder / name, ids) for name in inner) or (_store(folder, ids),)


def _store(folder: Path, ids: Callable[[int], Ids]) -> Store:
    try:
        files = files_of(names(folder))
    except UnknownStateFile as error:
        hint = "plan with a version of spark-ckpt that knows this state store; Spark 3.5 to 4.2's own can be read"
        raise FormatUnknown(f"{folder}: {error} is no file of a state store that is known", hint=hint) from error
    return Store(folder, files, ids, files.loadable(ids))


def _ids_of(ids: Mapping[int, StateIds | None], oldest: int, operator: int, partition: int) -> Callable[[int], Ids]:
    """Ids by version. Versions before the oldest batch of the log are needed too: their changes may follow a snapshot."""

    def of(version: int) -> Ids:
        if version < oldest or version not in ids:
            return None
        named = ids[version]
        partitions = None if named is None else named.get(operator)
        if partitions is None or partition >= len(partitions):
            return frozenset()
        return frozenset(partitions[partition])

    return of
