"""What becomes of files that nobody needs any more: nothing, another folder, or the end. Spark's `cleanSource`.

Cleaning is never worth a job's life: what cannot be moved or deleted stays, and the log says so. It is safe to repeat.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.fs as pafs

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt_files.listing import DataFile, Directory

CleanSource = Literal["off", "archive", "delete"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cleaning:
    """How files of `directory` are removed. Raises `ConfigInvalid` for a setting that would eat its own tail."""

    directory: Directory
    mode: CleanSource = "off"
    archive: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("off", "archive", "delete"):
            raise ConfigInvalid(f"cleanSource is 'off', 'archive' or 'delete', not {self.mode!r}")
        if (self.mode == "archive") != (self.archive is not None):
            raise ConfigInvalid("cleanSource='archive' and sourceArchiveDir are given together")

    @property
    def is_on(self) -> bool:
        """Whether files may be removed: never those that the log of Spark's file sink goes on naming."""
        return self.mode != "off" and not self.directory.is_of_sparks_sink

    def check(self) -> None:
        """Raise `ConfigInvalid` if files could not be moved to the archive, or would be found there again."""
        if self.mode != "off" and not self.is_on:
            raise ConfigInvalid(
                f"cleanSource={self.mode!r}: {self.directory.path} is written by Spark's file sink, whose log would go on "
                "naming the files",
                hint="leave cleanSource out; the sink's own option `retention` forgets old files",
            )
        if self.archive is None:
            return
        target, source = Directory(self.archive), self.directory
        if type(target.system) is not type(source.system) or _device(target) != _device(source):
            raise ConfigInvalid(
                f"{self.archive} is not on the file system of {source.path}: a move would be a copy",
                hint="choose a sourceArchiveDir on the same file system",
            )
        if f"{target.root}/".startswith(f"{source.root.rstrip('/')}/"):
            raise ConfigInvalid(
                f"{self.archive} lies in {source.path}: archived files could be read again",
                hint="choose a sourceArchiveDir outside of the directory",
            )

    def place_of(self, name: str) -> str:
        """Where an archived file is, as Spark places it: its whole path below the archive."""
        root = Directory(self.archive or "").root
        return f"{root.rstrip('/')}/{self.directory.root.lstrip('/')}/{name}"

    def remove(self, file: DataFile) -> bool:
        """Archive or delete a file; whether it is gone."""
        path = f"{self.directory.root}/{file.name}"
        try:
            if self.mode == "archive":
                place = self.place_of(file.name)
                self.directory.system.create_dir(place.rpartition("/")[0], recursive=True)
                self.directory.system.move(path, place)
            else:
                self.directory.system.delete_file(path)
        except FileNotFoundError:
            return True
        except (OSError, pa.ArrowException) as error:
            _log.warning("%s could not be cleaned (cleanSource=%s): %s", path, self.mode, error)
            return False
        return True


class Cleaner:
    """Removes files on a thread of its own: in an object store each takes a request."""

    def __init__(self, cleaning: Cleaning) -> None:
        self._cleaning = cleaning
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether the files given last are still being removed."""
        return self._thread is not None and self._thread.is_alive()

    def clean(self, files: Sequence[DataFile]) -> None:
        """Begin to remove these files, if nothing is being removed."""
        if files and not self.busy:
            self._thread = threading.Thread(target=self._remove, args=(tuple(files),), name="ckpt-clean-source")
            self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the files given last are removed; whether they are."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.busy

    def _remove(self, files: Sequence[DataFile]) -> None:
        for file in files:
            if not threading.main_thread().is_alive():  # the program ends: what is left is found by the next one
                return
            self._cleaning.remove(file)


def _device(directory: Directory) -> int:
    """The device of a local directory, or of what of its path exists; 0 elsewhere."""
    if not isinstance(directory.system, pafs.LocalFileSystem):
        return 0
    path = Path(directory.root)
    return next(each.stat().st_dev for each in (path, *path.parents) if each.exists())
