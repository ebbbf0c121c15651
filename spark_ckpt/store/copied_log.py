"""The log of a table in an object store, read from a copy in a local folder.

delta-rs asks an object store for each commit several times: when it opens a table, reads on and writes a checkpoint.
From the copy it takes them without a request. The copy gets a process's own commits as they are made, and those of others
by one request each.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from deltalake import DeltaTable

from spark_ckpt.delta_files import LOG, commit_name, log_file
from spark_ckpt.store.location import FileInfo, Location
from spark_ckpt.temporary_folder import TemporaryFolder

_HINT = "_last_checkpoint"
_READERS = 8
_ATTEMPTS = 5


class CopiedTable(DeltaTable):
    """A handle that reads the copy. It must not write: the library would write into the copy."""

    def __init__(self, location: Location, folder: TemporaryFolder) -> None:
        super().__init__(folder.path)
        self.location = location
        self.folder = folder  # held: the copy is deleted with the last reference

    @property
    def log(self) -> Path:
        """Folder of the copied log files."""
        return self.folder.path / LOG


def log_files(location: Location, after: int = -1) -> dict[tuple[int, str], str]:
    """Return the paths of commits ("json") and classic checkpoints ("checkpoint.parquet"), by version and kind.

    `after`: a version; only later ones are returned.
    """
    return {file: info.path for file, info in listed_log(location, after).items()}


def listed_log(location: Location, after: int = -1) -> dict[tuple[int, str], FileInfo]:
    """Return the files of `log_files` with their sizes and times."""
    # A store that cannot list from a name on returns all of them.
    listed = location.list(LOG, commit_name(after) if after >= 0 else "")
    found = ((log_file(info.path.removeprefix(f"{LOG}/")), info) for info in listed)
    kinds = ("json", "checkpoint.parquet")
    return {file: info for file, info in found if file is not None and file[0] > after and file[1] in kinds}


def open_copy(location: Location) -> CopiedTable | None:
    """Copy the log from its newest checkpoint on, and open it. Return None if there is no table.

    Raises deltalake's errors if the log cannot be read, a `StoreOutage`, and FileNotFoundError if files keep
    disappearing.
    """
    for attempt in range(_ATTEMPTS):
        files = log_files(location)
        if not files:
            return None
        base = max((version for version, kind in files if kind != "json"), default=-1)
        # A checkpoint also stands for the commit of its own version.
        needed = [
            path for (version, kind), path in files.items() if version > base or (version == base and kind != "json")
        ]
        folder = TemporaryFolder("log")
        try:
            _copy(location, needed, folder.path)
        except FileNotFoundError:
            # Trimmed since the listing: a later checkpoint covers it.
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        return CopiedTable(location, folder)
    return None


def pull(table: CopiedTable) -> None:
    """Copy the commits made after the handle's version. Raises FileNotFoundError if one of them was trimmed."""
    version = table.version()
    # One listing tells how many commits follow, and shows a gap if some of them were trimmed.
    files = log_files(table.location, version)
    commits = sorted(number for number, kind in files if kind == "json")
    if commits != list(range(version + 1, version + 1 + len(commits))):
        raise FileNotFoundError(f"commit {version + 1} was trimmed")
    _copy(table.location, [files[number, "json"] for number in commits], table.folder.path)


def keep(table: CopiedTable, version: int, content: bytes) -> None:
    """Add an own commit to the copy, right after it was made. On a full disk the next `pull` requests it."""
    # The commit counts, so its author must not get an error for the copy.
    with suppress(OSError):
        _write(table.log / commit_name(version), content)


def push_checkpoint(table: CopiedTable) -> CopiedTable:
    """Write a checkpoint of the handle's version into the object store. Return a handle that begins at it."""
    table.create_checkpoint()
    version = f"{table.version():020d}"
    for path in sorted(table.log.glob(f"{version}.checkpoint*")):
        table.location.write_bytes(f"{LOG}/{path.name}", path.read_bytes())
    # It names the checkpoint, so it comes after it.
    table.location.write_bytes(f"{LOG}/{_HINT}", (table.log / _HINT).read_bytes())
    # The handle begins at the checkpoint. Without this the copy of a job that runs for weeks would keep every commit.
    for path in table.log.glob("*.json"):
        if path.stem <= version:
            path.unlink()
    return CopiedTable(table.location, table.folder)


def _copy(location: Location, paths: Iterable[str], folder: Path) -> None:
    (folder / LOG).mkdir(exist_ok=True)
    # A file of a Delta log never changes under its name, so a copy is never stale.
    missing = [path for path in paths if not (folder / path).exists()]
    with ThreadPoolExecutor(_READERS) as pool:
        for path, content in zip(missing, pool.map(location.read_bytes, missing), strict=True):
            _write(folder / path, content)


def _write(path: Path, content: bytes) -> None:
    # Whole or not at all: a part that a full disk leaves would be taken for the file, and the log for damaged.
    part = path.with_name(f".{path.name}")
    part.write_bytes(content)
    part.replace(path)
