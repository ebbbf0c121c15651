"""Which files a directory holds, oldest first, as Spark takes them: by modification time, then by name.

Files that are still being written are invisible: names (or folders) that start with `.` or `_`, and names
that end in `.tmp` or `.inprogress`. Writers write under such a name and rename when the file is complete.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from spark_ckpt.errors import SourceInvalid

_HIDDEN_STARTS = (".", "_")
_UNFINISHED_ENDS = (".tmp", ".inprogress")
_NS_PER_MS = 1_000_000
_LIST_RATHER_THAN_ASK = 50
"""In an object store every file that is asked for takes a request, a listing one for a thousand."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A complete file: its name relative to the directory, its size in bytes, when it was modified last (Unix time).

    `read` is False for one that a job passed over when it began, and for one of which that is not known.
    """

    name: str
    size: int
    modified_ms: int = field(default=0, compare=False)
    read: bool = field(default=True, compare=False)

    @property
    def age_order(self) -> tuple[int, str]:
        """What files are sorted by: Spark's order."""
        return self.modified_ms, self.name


@dataclass(frozen=True)
class Directory:
    """A directory: a local path, or a URI of Arrow (s3, gs, abfss, hdfs, file)."""

    path: str
    recursive: bool = False

    def files(self, without: Collection[str] = (), passed: set[str] | None = None) -> list[DataFile]:
        """All complete files but those named in `without`, oldest first. Raises `SourceInvalid` if it cannot be listed.

        On a local file system a name in `without` costs nothing but its comparison: its file is not looked at. `passed`
        takes the names in `without` that are there.
        """
        seen: set[str] = set() if passed is None else passed
        with _listing_errors(self.path):
            found = self._local_files(without, seen) if self._is_local else self._listed_files(without, seen)
            return sorted(found, key=lambda file: file.age_order)

    def names(self) -> set[str]:
        """Names of all complete files. Raises `SourceInvalid` if the directory cannot be listed."""
        if not self._is_local:
            return {file.name for file in self.files()}
        with _listing_errors(self.path):
            return {name for name, _ in self._local_entries()}

    def stat(self, names: Iterable[str]) -> dict[str, DataFile]:
        """Those of the named files that exist."""
        wanted = list(names)
        with _listing_errors(self.path):
            if not self._is_local and len(wanted) > _LIST_RATHER_THAN_ASK:
                chosen = set(wanted)
                return {file.name: file for file in self.files() if file.name in chosen}
            infos = self.system.get_file_info([f"{self.root}/{name}" for name in wanted])
        found = zip(wanted, infos, strict=True)
        return {name: _data_file(name, info) for name, info in found if info.type == pafs.FileType.File}

    def open(self, file: DataFile) -> pa.NativeFile:
        """The file for random access; its size must still be what the listing said."""
        try:
            opened = self.system.open_input_file(f"{self.root}/{file.name}")
        except FileNotFoundError as error:
            raise vanished(self.path, file.name) from error
        except OSError as error:
            raise SourceInvalid(f"{self.path}/{file.name} cannot be read: {error}") from error
        if opened.size() != file.size:
            raise grown(self.path, file.name, file.size, opened.size())
        return opened

    @property
    def system(self) -> pafs.FileSystem:
        """The file system that the directory is on."""
        return self._resolved[0]

    @property
    def root(self) -> str:
        """The directory's path on its file system."""
        return self._resolved[1]

    @property
    def _is_local(self) -> bool:
        return isinstance(self.system, pafs.LocalFileSystem)

    @cached_property
    def _resolved(self) -> tuple[pafs.FileSystem, str]:
        if "://" not in self.path:
            return pafs.LocalFileSystem(), str(Path(self.path).absolute())
        try:
            system, root = pafs.FileSystem.from_uri(self.path)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise SourceInvalid(f"{self.path} cannot be opened: {error}") from error
        return system, root

    def __reduce__(self) -> tuple[object, ...]:
        return Directory, (self.path, self.recursive)

    def _listed_files(self, without: Collection[str], passed: set[str]) -> Iterator[DataFile]:
        for info in self.system.get_file_info(pafs.FileSelector(self.root, recursive=self.recursive)):
            name = info.path[len(self.root) :].lstrip("/")
            if info.type != pafs.FileType.File or not is_complete(name):
                continue
            if name in without:
                passed.add(name)
            else:
                yield _data_file(name, info)

    def _local_files(self, without: Collection[str], passed: set[str]) -> Iterator[DataFile]:
        for name, entry in self._local_entries():
            if name in without:
                passed.add(name)
                continue
            try:
                stat = entry.stat()
            except FileNotFoundError:  # removed or renamed since it was listed
                continue
            yield DataFile(name, stat.st_size, stat.st_mtime_ns // _NS_PER_MS)

    def _local_entries(self) -> Iterator[tuple[str, os.DirEntry[str]]]:
        folders = [""]
        while folders:
            folder = folders.pop()
            for entry in self._scanned(folder):
                if entry.name.startswith(_HIDDEN_STARTS):
                    continue
                if entry.is_dir():
                    folders += [f"{folder}{entry.name}/"] if self.recursive else []
                elif not entry.name.endswith(_UNFINISHED_ENDS) and entry.is_file():
                    yield folder + entry.name, entry

    def _scanned(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(f"{self.root}/{folder}") as entries:
                return list(entries)
        except FileNotFoundError:
            if not folder:
                raise
            return []  # removed since its parent was listed


@contextmanager
def _listing_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceInvalid(f"{path} does not exist", hint="create the directory, then start the job") from error
    except (OSError, pa.ArrowException) as error:
        raise SourceInvalid(f"{path} cannot be listed: {error}") from error


def _data_file(name: str, info: pafs.FileInfo) -> DataFile:
    return DataFile(name, info.size, (info.mtime_ns or 0) // _NS_PER_MS)


def is_complete(name: str) -> bool:
    """Whether a file of this name may be consumed."""
    hidden = any(part.startswith(_HIDDEN_STARTS) for part in name.split("/"))
    return not hidden and not name.endswith(_UNFINISHED_ENDS)


def vanished(path: str, name: str) -> SourceInvalid:
    """The error for a planned file that is gone before it was read."""
    return SourceInvalid(
        f"{path}: file {name} has vanished before it was read",
        hint="put the file back; a file may be removed when the epoch that read it is published",
        file=name,
    )


def grown(path: str, name: str, before: int, now: int) -> SourceInvalid:
    """The error for a consumed or planned file of another size."""
    return SourceInvalid(
        f"{path}: file {name} was {before} bytes long when it was counted and is {now} now",
        hint="write under a name that starts with '_' or ends in '.tmp' and rename when the file is complete",
        file=name,
    )
