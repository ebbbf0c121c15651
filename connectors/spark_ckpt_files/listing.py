"""Lists the files of a directory in Spark's order: by modification time, then by name.

Unfinished files are invisible: names (or folders) that start with `.` or `_`, and names that end in `.tmp` or
`.inprogress`. Writers use such a name and rename the file when it is complete.

In a folder of Spark's streaming file sink (`_spark_metadata`), the files are those that its log has committed.
"""

from __future__ import annotations

import errno
import logging
import os
import weakref
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from spark_ckpt.errors import SourceInvalid, SourceSilent
from spark_ckpt.place import local_path
from spark_ckpt.spark_internals.query_logs import SINK_LOG
from spark_ckpt.storage_errors import one_line, refusal_in
from spark_ckpt_files.sink_log import SparkSinkLog

_log = logging.getLogger(__name__)
_HIDDEN_STARTS = (".", "_")
_UNFINISHED_ENDS = (".tmp", ".inprogress")
_NS_PER_MS = 1_000_000
_LIST_RATHER_THAN_ASK = 50
"""Number of files from which one listing is cheaper in an object store: a status takes a request, a listing one per
1000.
"""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A complete file: name relative to the directory, size in bytes, last modification (Unix time in ms).

    `read` is False for a file that the job skipped at its start, or may have skipped.
    """

    name: str
    size: int
    modified_ms: int = field(default=0, compare=False)
    read: bool = field(default=True, compare=False)

    @property
    def age_order(self) -> tuple[int, str]:
        """Sort key of files: Spark's order."""
        return self.modified_ms, self.name


@dataclass(frozen=True)
class Directory:
    """A directory: a local path, or a URI of Arrow (s3, gs, abfss, hdfs, file).

    `ignore_missing`: leave out missing files that the log of Spark's file sink has committed.
    """

    path: str
    recursive: bool = False
    ignore_missing: bool = False

    def files(self, without: Collection[str] = (), passed: set[str] | None = None) -> list[DataFile]:
        """Return all complete files except those named in `without`, oldest first. Raises `SourceInvalid` if listing
        fails.

        On a local file system a name in `without` costs only its comparison: the file is not opened or checked.
        `passed` receives the names of `without` that exist.
        """
        seen: set[str] = set() if passed is None else passed
        with _listing_errors(self.path):
            found = self._local_files(without, seen) if self._is_local else self._listed_files(without, seen)
            return sorted(found, key=lambda file: file.age_order)

    def names(self) -> set[str]:
        """Return the names of all complete files. Raises `SourceInvalid` if the directory cannot be listed."""
        if not self._is_local:
            return {file.name for file in self.files()}
        with _listing_errors(self.path):
            return {name for name, _ in self._local_entries()}

    def stat(self, names: Iterable[str]) -> dict[str, DataFile]:
        """Return those of the named files that exist."""
        wanted = list(names)
        with _listing_errors(self.path):
            if not self._is_local and len(wanted) > _LIST_RATHER_THAN_ASK:
                listed = self._listed()
                found = [(name, listed[name]) for name in wanted if name in listed]
            else:
                infos = self.system.get_file_info([f"{self.root}/{name}" for name in wanted])
                found = list(zip(wanted, infos, strict=True))
        return {name: _data_file(name, info) for name, info in found if info.type == pafs.FileType.File}

    @property
    def is_of_sparks_sink(self) -> bool:
        """True if Spark's streaming file sink writes this directory: its log then lists the valid files."""
        with _listing_errors(self.path):
            return self._has_log("")

    def open(self, file: DataFile) -> pa.NativeFile:
        """Open the file for random access. Raises `SourceInvalid` if it is gone or has another size than in the
        listing.
        """
        try:
            opened = self.system.open_input_file(f"{self.root}/{file.name}")
        except FileNotFoundError as error:
            raise vanished(self.path, file.name) from error
        except OSError as error:
            raise SourceSilent(f"{self.path}/{file.name} cannot be read: {error}") from error
        # A file that is still being written would be read in part, and its rest never.
        if opened.size() != file.size:
            raise grown(self.path, file.name, file.size, opened.size())
        return opened

    @contextmanager
    def reading(self, file: DataFile) -> Iterator[None]:
        """Raise the errors of a file's content as `SourceInvalid`, and those of an object store as `SourceSilent`."""
        try:
            yield
        except (OSError, ValueError, pa.ArrowException) as error:
            # A disk or a mount that fails, by the error's number: the job waits for it.
            if refusal_in(error) is not None:
                raise
            # Of an object store it may be an outage. A disk reads a file as it is.
            kind = SourceSilent if isinstance(error, OSError) and not self._is_local else SourceInvalid
            raise kind(
                f"{self.path}/{file.name} cannot be read: {one_line(error)}",
                hint="if the file is damaged, write it again or move it out of the directory, and start the job again",
                file=file.name,
            ) from error

    @property
    def system(self) -> pafs.FileSystem:
        """File system of the directory."""
        return self._resolved[0]

    @property
    def root(self) -> str:
        """Path of the directory on its file system."""
        return self._resolved[1]

    def held(self) -> HeldFolder | None:
        """Return the folder, held open while a query runs. None in an object store, where a folder is only a name."""
        return HeldFolder(self.root) if self._is_local else None

    @property
    def _is_local(self) -> bool:
        return isinstance(self.system, pafs.LocalFileSystem)

    @cached_property
    def _resolved(self) -> tuple[pafs.FileSystem, str]:
        if (local := local_path(self.path)) is not None:
            return pafs.LocalFileSystem(), str(local.absolute())
        try:
            system, root = pafs.FileSystem.from_uri(self.path)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise SourceInvalid(f"{self.path} cannot be opened: {error}") from error
        return system, root

    @cached_property
    def _logs(self) -> dict[str, SparkSinkLog]:
        return {}

    def __reduce__(self) -> tuple[object, ...]:
        # Without the cached properties: each process opens a file system and reads the sink's log for itself.
        return Directory, (self.path, self.recursive, self.ignore_missing)

    def _listed(self) -> dict[str, pafs.FileInfo]:
        """Return everything below the directory, including folders, by name."""
        infos = self.system.get_file_info(pafs.FileSelector(self.root, recursive=self.recursive))
        return {info.path[len(self.root) :].lstrip("/"): info for info in infos}

    def _listed_files(self, without: Collection[str], passed: set[str]) -> Iterator[DataFile]:
        listed = self._listed()
        # With the slash at the end: `startswith` then takes no other folder. Empty for the directory itself.
        folders = sorted({name[: -len(SINK_LOG)] for name in listed if f"/{name}".endswith(f"/{SINK_LOG}")})
        if "" not in folders and self._has_log(""):  # created since the listing
            folders.insert(0, "")
        counts = [name for name, info in listed.items() if info.type == pafs.FileType.File and is_complete(name)]
        if folders:
            counts = [name for name in counts if not name.startswith(tuple(folders))]
            # Only the outermost log counts, as in a local directory, where a folder with a log is not searched
            # further.
            outer = [each for each in folders if not any(each != other and each.startswith(other) for other in folders)]
            counts += [name for folder in outer for name in self._committed(folder)]
        fresh = [name for name in counts if name not in without]
        passed.update(name for name in counts if name in without)
        for name in fresh:
            # The log may name a file that was written after the listing.
            info = listed.get(name) or self.system.get_file_info(f"{self.root}/{name}")
            if info.type == pafs.FileType.File:
                yield _data_file(name, info)
            else:
                self._missing(name)

    def _local_files(self, without: Collection[str], passed: set[str]) -> Iterator[DataFile]:
        for name, entry in self._local_entries():
            if name in without:
                passed.add(name)
                continue
            try:
                stat = entry.stat()
            except FileNotFoundError:  # removed or renamed since the listing
                if isinstance(entry, Path):
                    self._missing(name)
                continue
            yield DataFile(name, stat.st_size, stat.st_mtime_ns // _NS_PER_MS)

    def _local_entries(self) -> Iterator[tuple[str, os.DirEntry[str] | Path]]:
        """Yield names and files; the file is a `Path` if a log has committed it."""
        folders = [""]
        while folders:
            folder = folders.pop()
            entries = self._scanned(folder)
            if self._has_log(folder):  # checked after the scan: a scanned file may be younger than the log
                yield from ((name, Path(self.root, name)) for name in self._committed(folder))
                continue
            for entry in entries:
                if entry.name.startswith(_HIDDEN_STARTS):
                    continue
                if entry.is_dir():
                    folders += [self._entered(folder, entry)] if self.recursive else []
                elif not entry.name.endswith(_UNFINISHED_ENDS) and entry.is_file():
                    yield _utf8(self.path, folder + entry.name), entry

    def _entered(self, folder: str, entry: os.DirEntry[str]) -> str:
        """Return the name of a subfolder. Raises `SourceInvalid` for a link to one of the folders that contain it."""
        name = f"{folder}{entry.name}"
        # Without this check two such links would be followed in every order, 40 levels deep.
        if entry.is_symlink():
            here, target = Path(self.root, folder), Path(entry.path).resolve()
            containing = (each for each in (here, *here.parents) if each.is_relative_to(self.root))
            if any(each.resolve() == target for each in containing):
                shown = os.fsencode(name).decode("utf-8", "backslashreplace")
                raise SourceInvalid(
                    f"{self.path}: {shown} is a link to a folder that contains it",
                    hint="remove the link, or give it a name that starts with '_'",
                    file=shown,
                )
        return f"{name}/"

    def _scanned(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(f"{self.root}/{folder}") as entries:
                return list(entries)
        except FileNotFoundError:
            if not folder:
                raise
            return []  # removed since the listing of its parent

    def _has_log(self, folder: str) -> bool:
        path = f"{self.root}/{folder}{SINK_LOG}"
        if self._is_local:
            return Path(path).is_dir()
        return bool(self.system.get_file_info(path).type == pafs.FileType.Directory)

    def _committed(self, folder: str) -> list[str]:
        """Return the names of the files that the log of a sink's folder has committed."""
        log = self._logs.setdefault(folder, SparkSinkLog(self.system, f"{self.root}/{folder}".rstrip("/")))
        return [f"{folder}{name}" for name in log.committed() if self.recursive or "/" not in name]

    def _missing(self, name: str) -> None:
        if not self.ignore_missing:
            raise SourceInvalid(
                f"{self.path}: file {name} is committed in {SINK_LOG} and is gone; it was never read",
                hint="put the file back, or do without its rows: FilesSource(..., ignoreMissingFiles=True)",
                file=name,
            )
        _log.warning("ignoreMissingFiles: %s/%s is committed in %s and is gone", self.path, name, SINK_LOG)


class HeldFolder:
    """A local folder that stays open while a query runs, so that a replacement cannot get the same inode."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._handle: int | None = None
        self._close: weakref.finalize[[int], HeldFolder] | None = None

    def replaced(self) -> bool:
        """Return True if another folder is at the path since the last call. The first call returns False."""
        before = self._handle
        try:
            # The open handle keeps the old inode in use: without it, a replacement could get the same number.
            if before is not None and os.path.samestat(os.fstat(before), Path(self._path).stat()):
                return False
            handle = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        if self._close is not None:
            self._close()
        self._handle, self._close = handle, weakref.finalize(self, os.close, handle)
        return before is not None

    def __reduce__(self) -> tuple[object, ...]:
        # A descriptor means nothing in another process, and tasks do not ask.
        return HeldFolder, (self._path,)


@contextmanager
def _listing_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceInvalid(f"{path} does not exist", hint="create the directory, then start the job") from error
    except OSError as error:
        # A link to itself is no outage.
        kind = SourceInvalid if error.errno == errno.ELOOP else SourceSilent
        raise kind(f"{path} cannot be listed: {error}") from error
    except (pa.ArrowException, UnicodeError) as error:
        raise SourceInvalid(f"{path} cannot be listed: {error}") from error


def _utf8(path: str, name: str) -> str:
    try:
        # No log, cursor or row could hold another name.
        name.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        raise SourceInvalid(
            f"{path}: the name of file {shown} is not UTF-8", hint="rename the file", file=shown
        ) from error
    return name


def _data_file(name: str, info: pafs.FileInfo) -> DataFile:
    return DataFile(name, info.size, (info.mtime_ns or 0) // _NS_PER_MS)


def is_complete(name: str) -> bool:
    """Return True if a file of this name may be consumed."""
    hidden = any(part.startswith(_HIDDEN_STARTS) for part in name.split("/"))
    return not hidden and not name.endswith(_UNFINISHED_ENDS)


_COMPLETE = "Write under a name that starts with '_' or ends in '.tmp', and rename the file when it is complete"


def vanished(path: str, name: str) -> SourceInvalid:
    """Return the error for a planned file that is gone before it was read."""
    return SourceInvalid(
        f"{path}: file {name} has vanished before it was read",
        hint="put the file back and start the job again: without the file, the start continues and its rows are missing; a file "
        "may be removed when the epoch that read it is published",
        file=name,
    )


def grown(path: str, name: str, before: int, now: int) -> SourceInvalid:
    """Return the error for a planned file that has another size now. The next start takes it as it is then."""
    return SourceInvalid(
        f"{path}: file {name} was {before} bytes long when it was counted and is {now} now",
        hint=f"{_COMPLETE}; start the job again when this one is complete",
        file=name,
    )


def rewritten(path: str, name: str, before: int, now: int) -> SourceInvalid:
    """Return the error for a consumed file that has another size now: it would be refused at every start."""
    return SourceInvalid(
        f"{path}: file {name} was {before} bytes long when it was consumed and is {now} now",
        hint="bring the file back as it was, or move it out of the directory: the job continues without it, and reads rows that it "
        f"lacks from a file of a name that was never there. {_COMPLETE}",
        file=name,
    )
