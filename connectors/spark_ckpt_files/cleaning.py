"""Removes files that no kept epoch needs: off, archive or delete, like Spark's `cleanSource`.

A failure never ends the job: a file that cannot be moved or deleted stays, and the log names it. Cleaning is safe to
repeat.
"""

from __future__ import annotations

import logging
import os
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
    """Settings for removing files of `directory`. Raises `ConfigInvalid` for a wrong combination."""

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
        """True if files may be removed. Never in a folder of Spark's file sink, whose log would still name them."""
        return self.mode != "off" and not self.directory.is_of_sparks_sink

    def check(self) -> None:
        """Raise `ConfigInvalid` if files cannot be moved to the archive, or if the source would find them there
        again.
        """
        if self.mode != "off" and not self.is_on:
            raise ConfigInvalid(
                f"cleanSource={self.mode!r}: {self.directory.path} is written by Spark's file sink, whose log would still "
                "name the files",
                hint="leave cleanSource out; the sink's own option `retention` forgets old files",
            )
        if self.archive is None:
            return
        target, source = Directory(self.archive), self.directory
        # A copy is not atomic: a driver killed within it would leave half a file in the archive, under the name of
        # the whole one.
        if type(target.system) is not type(source.system) or _device(target) != _device(source):
            raise ConfigInvalid(
                f"{self.archive} is not on the file system of {source.path}: a move would be a copy",
                hint="choose a sourceArchiveDir on the same file system",
            )
        if f"{_real(target)}/".startswith(f"{_real(source).rstrip('/')}/"):
            raise ConfigInvalid(
                f"{self.archive} lies in {source.path}: archived files could be read again",
                hint="choose a sourceArchiveDir outside of the directory",
            )

    def place_of(self, name: str) -> str:
        """Return the path of an archived file, as in Spark: its whole path below the archive."""
        root = Directory(self.archive or "").root
        return f"{root.rstrip('/')}/{self.directory.root.lstrip('/')}/{name}"

    def remove(self, file: DataFile) -> bool:
        """Archive or delete a file. Return True if it is gone."""
        path = f"{self.directory.root}/{file.name}"
        try:
            if self.mode == "archive":
                place = self.place_of(file.name)
                self.directory.system.create_dir(place.rpartition("/")[0], recursive=True)
                self.directory.system.move(path, place)
            else:
                self.directory.system.delete_file(path)
        # Removed by an earlier attempt, or by its owner.
        except FileNotFoundError:
            return True
        except (OSError, pa.ArrowException) as error:
            _log.warning("%s could not be cleaned (cleanSource=%s): %s", path, self.mode, error)
            return False
        return True


class Cleaner:
    """Removes files on its own thread: in an object store each file takes one request."""

    def __init__(self, cleaning: Cleaning) -> None:
        self._cleaning = cleaning
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """True while the last files are being removed."""
        return self._thread is not None and self._thread.is_alive()

    def clean(self, files: Sequence[DataFile]) -> None:
        """Start removing these files, unless a removal is running."""
        if files and not self.busy:
            self._thread = threading.Thread(target=self._remove, args=(tuple(files),), name="ckpt-clean-source")
            self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the last files are removed. Return False after `timeout_s` seconds."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.busy

    def _remove(self, files: Sequence[DataFile]) -> None:
        for file in files:
            if not threading.main_thread().is_alive():  # the program ends; the next one finds the remaining files
                return
            self._cleaning.remove(file)


def _real(directory: Directory) -> str:
    """Return the path of a directory without symbolic links; other file systems have none."""
    is_local = isinstance(directory.system, pafs.LocalFileSystem)
    return os.path.realpath(directory.root) if is_local else directory.root


def _device(directory: Directory) -> int:
    """Return the device of a local directory, or of its nearest existing parent; 0 for other file systems."""
    if not isinstance(directory.system, pafs.LocalFileSystem):
        return 0
    path = Path(directory.root)
    return next(each.stat().st_dev for each in (path, *path.parents) if each.exists())
