"""Atomic, durable writes: after a crash of the machine a file or folder is complete or absent."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spark_ckpt.errors import CheckpointDamaged, CkptError, RewindNotPermitted
from spark_ckpt.store import durable
from spark_rewind.reading import HINT_DAMAGED


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Raise errors of the file system as `RewindNotPermitted`.

    FileExistsError and FileNotFoundError stay as they are.
    """
    try:
        yield
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError as error:
        hint = "run as a user that may write there, on a file system with room; then run the same command again"
        raise RewindNotPermitted(f"{path}: {error.strerror or type(error).__name__}", hint=hint) from error


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_new(path: Path, content: bytes) -> None:
    """Create a file atomically. It is durable when this returns. Raises FileExistsError, `RewindNotPermitted`."""
    with written(path):
        part = _part(path, content)
        try:
            # a link, unlike a rename, refuses a name that exists
            os.link(part, path)
        finally:
            part.unlink()
        # Without this a power failure may lose the name, and keep what was written after it.
        sync_folder(path.parent)


def replace(path: Path, content: bytes, times_ns: tuple[int, int] | None = None) -> None:
    """Replace a file's content; it is durable when this returns.

    `times_ns`: times of access and modification in nanoseconds. Raises `RewindNotPermitted`.
    """
    with written(path):
        part = _part(path, content)
        if times_ns is not None:
            os.utime(part, ns=times_ns)
        part.replace(path)
        sync_folder(path.parent)


def _part(path: Path, content: bytes) -> Path:
    """Write the content to a temporary name. Replace the file of an earlier attempt."""
    part = part_of(path)
    part.unlink(missing_ok=True)
    with part.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return part


def part_of(path: Path) -> Path:
    """Return a file's temporary name. A process that dies leaves it; no reader opens it."""
    return path.with_name(f".{path.name}.rewind.tmp")


def link_or_copy(source: Path, target: Path) -> None:
    """Link a file to another name, or copy it if the file system has no links. Raises `RewindNotPermitted`."""
    with written(target):
        durable.link_or_copy(source, target)


def link_with_checksum(source: Path, target: Path) -> None:
    """Link a file, with its Hadoop checksum if it has one.

    Raises `CheckpointDamaged` if it is gone, `RewindNotPermitted`.
    """
    try:
        link_or_copy(source, target)
    except FileNotFoundError:
        raise CheckpointDamaged(f"{source} went away while it was copied", hint=HINT_DAMAGED) from None
    # Hadoop's local file system compares a file with its checksum if there is one, and reads it unchecked if not.
    checksum = checksum_of(source)
    if checksum.is_file():
        link_or_copy(checksum, checksum_of(target))


def checksum_of(path: Path) -> Path:
    """Return the name of the checksum that Hadoop's local file system keeps of a file."""
    return path.with_name(f".{path.name}.crc")


@contextmanager
def locked(path: Path, taken: CkptError) -> Iterator[None]:
    """Hold the exclusive lock of a file. Raises `taken` if another process has it, `RewindNotPermitted`."""
    with written(path):
        lock = path.open("a")
    with lock:
        try:
            # The lock ends with its process: a killed command blocks no later one.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        except OSError as error:
            raise RewindNotPermitted(
                f"{path} cannot be locked: {error.strerror or type(error).__name__}",
                hint="mount its folder with locks (flock); then run the same command again",
            ) from error
        yield


def make_folder(folder: Path, like: Path) -> None:
    """Create a folder with the permissions of another one, as root also with its owner. Raises `RewindNotPermitted`."""
    with written(folder):
        folder.mkdir(parents=True, exist_ok=True)
        found = like.stat()
        folder.chmod(found.st_mode & 0o7777)
        # only root may give a folder to another user
        if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()) and os.geteuid() == 0:
            os.chown(folder, found.st_uid, found.st_gid)


def sync_tree(folder: Path) -> None:
    """Make names in a folder and all folders below it durable."""
    for root, _, _ in os.walk(folder):
        sync_folder(Path(root))


def remove_tree(folder: Path) -> None:
    """Remove a folder if it exists. Raises `RewindNotPermitted`."""
    with written(folder), suppress(FileNotFoundError):
        shutil.rmtree(folder)
        sync_folder(folder.parent)
