"""Names of the state files of a plain query's operators, and the versions that they provide.

Version N + 1 is the state after batch N. Spark loads the newest snapshot up to a version and the changes of every
version since.

- HDFS-backed: `4.delta` and `4.snapshot`.
- RocksDB: `4.changelog` and `4.zip`, which lists its SST files in the same folder.

In checkpoint format 2 each name contains the id of the attempt that wrote it, and `commits` records the attempt that
counts.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_ckpt.spark_internals.names import SparkName

_FOLDER = "sql/core/src/main/scala/org/apache/spark/sql/execution/streaming/state"
_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
_NO_STATE = "it is not known which state of a plain query can be loaded"
NAMES = (
    SparkName(
        "<version>.delta", f"{_PACKAGE}.HDFSBackedStateStoreProvider ({_FOLDER}/HDFSBackedStateStoreProvider.scala)",
        "files_of", _NO_STATE,
    ),
    SparkName("<version>.zip", f"{_PACKAGE}.RocksDBFileManager ({_FOLDER}/RocksDBFileManager.scala)", "files_of", _NO_STATE),
    SparkName(
        "dfsSstFileName", f"{_PACKAGE}.RocksDBImmutableFile ({_FOLDER}/RocksDBFileManager.scala)",
        "missing_in_snapshot", _NO_STATE,
    ),
)  # fmt: skip

# Groups: the name, the version, the attempt's id, the kind.
_VERSIONED = re.compile(
    r"^((\d+)(?:_([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}))?\.(delta|snapshot|changelog|zip))$",
    re.MULTILINE,
)
_SNAPSHOTS = ("snapshot", "zip")
_CHANGES = ("delta", "changelog")
_METADATA = "metadata"
_METADATA_BYTES_MAX = 64_000_000

Ids = frozenset[str] | None
"""Ids of the attempts that count. Empty: files have no ids. None: unknown."""


class UnknownStateFile(ValueError):
    """A state folder contains a file with an unknown kind of name."""


class TornSnapshot(ValueError):
    """A snapshot does not list the files it consists of."""


@dataclass(slots=True)
class StoreFiles:
    """Files of one store. Each mapping is from version to file name by id, with an empty text for no id."""

    snapshots: dict[int, dict[str, str]] = field(default_factory=dict)
    changes: dict[int, dict[str, str]] = field(default_factory=dict)

    def loadable(self, version: int, ids: Callable[[int], Ids]) -> bool:
        """Return True if a version can be loaded, judged by its files' names."""
        # back to the newest snapshot, or to version 0, which is empty
        while version > 0 and not _has(self.snapshots, version, ids):
            if not _has(self.changes, version, ids):
                return False
            version -= 1
        return True

    def missing(self, version: int, ids: Callable[[int], Ids]) -> int:
        """Return the newest version without a file that loading `version` needs; for a version that cannot be loaded."""
        while version > 0 and _has(self.changes, version, ids):
            version -= 1
        return version

    def snapshot_for(self, version: int, ids: Callable[[int], Ids]) -> str | None:
        """Return the name of the snapshot that loading begins with; None if it begins without one."""
        for each in range(version, 0, -1):
            if _has(self.snapshots, each, ids):
                wanted, there = ids(each), self.snapshots[each]
                return next(name for one, name in there.items() if not wanted or one in wanted)
        return None


def files_of(names: Iterable[str]) -> StoreFiles:
    """Sort the names in a store's folder. Raises `UnknownStateFile`.

    One search covers all names: there are hundreds in each of hundreds of folders.
    """
    files, known = StoreFiles(), [name for name in names if not (name[0] == "." or name.endswith(".crc"))]
    found = _VERSIONED.findall("\n".join(known))
    if len(found) != len(known):
        matched = {name for name, *_ in found}
        raise UnknownStateFile(next((name for name in known if name not in matched), known[0]))
    for name, version, unique, kind in found:
        of_kind = files.snapshots if kind in _SNAPSHOTS else files.changes
        of_kind.setdefault(int(version), {})[unique] = name
    return files


def first_file(version: int, ids: Callable[[int], Ids], exists: Callable[[str], bool]) -> str | None:
    """Return the first file to load for a version, if all files that it needs exist under their expected names.

    This is the snapshot, or without one the first change; an empty text for version 0 itself, which is empty. Return
    None if a file is missing or only a listing can find it. It checks a few names where a folder has hundreds.
    """
    first = ""
    while version > 0:
        wanted = ids(version)
        if wanted is None:
            return None
        stems = [f"{version}_{one}" for one in wanted] or [f"{version}"]  # or without ids
        snapshot = _first(stems, _SNAPSHOTS, exists)
        if snapshot is not None:
            return snapshot
        change = _first(stems, _CHANGES, exists)
        if change is None:
            return None
        first, version = change, version - 1
    return first


def _first(stems: Iterable[str], kinds: Iterable[str], exists: Callable[[str], bool]) -> str | None:
    names = (f"{stem}.{kind}" for stem in stems for kind in kinds)
    return next((name for name in names if exists(name)), None)


def missing_in_snapshot(path: Path) -> str | None:
    """Return the name of a file that a RocksDB snapshot lists and lacks, or the snapshot's defect.

    Return None for a complete snapshot.
    """
    try:
        names = named_in_snapshot(path)
    except TornSnapshot as error:
        return str(error)
    return next((name for name in names if not (path.parent / name).is_file()), None)


def named_in_snapshot(path: Path) -> list[str]:
    """Return the other files that a snapshot consists of, relative to its folder. Raises `TornSnapshot`."""
    if path.suffix != ".zip":
        return []
    try:
        with zipfile.ZipFile(path) as opened:
            text = _read_bounded(opened)
    except (zipfile.BadZipFile, KeyError, OSError, ValueError) as error:
        raise TornSnapshot(f"{path.name} cannot be read ({type(error).__name__})") from error
    try:
        version, _, body = text.partition("\n")
        listed = json.loads(body)
        # The names come from a file: one with a slash would lead out of the folder.
        names = [_shared_name("SSTs", each["dfsSstFileName"]) for each in listed.get("sstFiles") or ()]
        # Spark leaves the field out if there is no log file.
        logs = [each for each in listed.get("logFiles") or () if each.get("sizeBytes") != 0]
        names += [_shared_name("logs", each["dfsLogFileName"]) for each in logs]
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise TornSnapshot(f"{path.name} does not say which files it consists of") from error
    if version != "v1":
        raise TornSnapshot(f"{path.name} is in format {version[:20]!r}")
    return names


def versioned(name: str) -> tuple[int, str] | None:
    """Return version and id (empty text for none) from the name of a store's file; None for a file of another kind."""
    found = _VERSIONED.fullmatch(name)
    return None if found is None else (int(found[2]), found[3] or "")


def snapshot_version(name: str) -> int | None:
    """Return the version in a snapshot's name; None for another file."""
    found = _VERSIONED.fullmatch(name)
    return int(found[2]) if found is not None and found[4] in _SNAPSHOTS else None


def _read_bounded(opened: zipfile.ZipFile) -> str:
    # A damaged or hostile zip may expand to any size.
    if opened.getinfo(_METADATA).file_size > _METADATA_BYTES_MAX:
        raise ValueError("too large")
    return opened.read(_METADATA).decode()


def _shared_name(folder: str, name: str) -> str:
    if "/" in name or name.startswith("."):
        raise ValueError(name)
    return f"{folder}/{name}"


def _has(files: Mapping[int, Mapping[str, str]], version: int, ids: Callable[[int], Ids]) -> bool:
    there, wanted = files.get(version), ids(version)
    if not there:
        return False
    if wanted is None:
        # ids unknown: a single file must be the one that counts
        return len(there) == 1
    return any(one in there for one in wanted) if wanted else "" in there
