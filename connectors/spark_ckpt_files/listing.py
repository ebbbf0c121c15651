"""Which files a directory holds, in the order in which they are consumed: by name.

Files that are still being written are invisible: names (or folders) that start with `.` or `_`, and names
that end in `.tmp` or `.inprogress`. Writers write under such a name and rename when the file is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from spark_ckpt.errors import SourceInvalid

_HIDDEN_STARTS = (".", "_")
_UNFINISHED_ENDS = (".tmp", ".inprogress")


@dataclass(frozen=True, slots=True, order=True)
class DataFile:
    """A complete file: its name relative to the directory, and its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Directory:
    """An append-only directory: a local path, or a URI of Arrow (s3, gs, abfss, hdfs, file)."""

    path: str
    recursive: bool = False

    def files(self) -> list[DataFile]:
        """All complete files in name order. Raises `SourceInvalid` if the directory cannot be listed."""
        system, root = self._resolve()
        selector = pafs.FileSelector(root, recursive=self.recursive)
        try:
            found = system.get_file_info(selector)
        except FileNotFoundError as error:
            raise SourceInvalid(
                f"{self.path} does not exist", hint="create the directory, then start the job"
            ) from error
        except (OSError, pa.ArrowException) as error:
            raise SourceInvalid(f"{self.path} cannot be listed: {error}") from error
        return sorted(_complete(root, found))

    def open(self, file: DataFile) -> pa.NativeFile:
        """The file for random access; its size must still be what the listing said."""
        system, root = self._resolve()
        try:
            opened = system.open_input_file(f"{root}/{file.name}")
        except FileNotFoundError as error:
            raise vanished(self.path, file.name) from error
        except OSError as error:
            raise SourceInvalid(f"{self.path}/{file.name} cannot be read: {error}") from error
        if opened.size() != file.size:
            raise grown(self.path, file.name, file.size, opened.size())
        return opened

    def _resolve(self) -> tuple[pafs.FileSystem, str]:
        if "://" not in self.path:
            return pafs.LocalFileSystem(), str(Path(self.path).absolute())
        try:
            system, root = pafs.FileSystem.from_uri(self.path)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise SourceInvalid(f"{self.path} cannot be opened: {error}") from error
        return system, root


def _complete(root: str, found: Sequence[pafs.FileInfo]) -> list[DataFile]:
    files = []
    for info in found:
        name = info.path[len(root) :].lstrip("/")
        if info.type == pafs.FileType.File and is_complete(name):
            files.append(DataFile(name, info.size))
    return files


def is_complete(name: str) -> bool:
    """Whether a file of this name may be consumed."""
    hidden = any(part.startswith(_HIDDEN_STARTS) for part in name.split("/"))
    return not hidden and not name.endswith(_UNFINISHED_ENDS)


def vanished(path: str, name: str) -> SourceInvalid:
    """The error for a consumed or planned file that is gone."""
    return SourceInvalid(
        f"{path}: file {name} has vanished, but the job's cursor counts it",
        hint="put the file back; the directory must be append-only while the job uses it",
        file=name,
    )


def grown(path: str, name: str, before: int, now: int) -> SourceInvalid:
    """The error for a consumed or planned file of another size."""
    return SourceInvalid(
        f"{path}: file {name} was {before} bytes long when it was counted and is {now} now",
        hint="write under a name that starts with '_' or ends in '.tmp' and rename when the file is complete",
        file=name,
    )
