"""Temporary folders that are deleted also if their process is killed: by the next process that makes one of the same kind.

Each folder has a file that its process holds locked. The kernel frees the lock when the process ends in any way. So on the same
host a lock that can be taken proves the end, also after a container was started again, when a process number proves nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from types import TracebackType

LOCK = ".ckpt-lock"
"""The locked file of each folder; it holds the host's name."""
_HOST = socket.gethostname().encode()


class TemporaryFolder:
    """A new folder `path` of this `kind`, in `base` or the system's folder for temporary files.

    It is deleted at the end of a `with` block, with the last reference, or when the process ends. Folders of the same kind whose
    processes were killed are deleted first. Raises OSError.
    """

    def __init__(self, kind: str, base: str | None = None) -> None:
        prefix = f"spark-ckpt-{kind}-"
        _delete_left(Path(base or gettempdir()), prefix)
        self.path = Path(mkdtemp(prefix=prefix, dir=base))
        held = _locked(self.path), _kept_from_ageing(self.path)
        self._delete = weakref.finalize(self, _end, self.path, held, os.getpid())

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._delete()


def _locked(folder: Path) -> int:
    """Return the descriptor that holds the folder's lock; without locks on this file system no other process deletes it."""
    fresh = folder / f"{LOCK}.new"
    held = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with suppress(OSError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(held, _HOST)
        # Named after it is locked: another process would take a free lock of this name for that of a dead one.
        fresh.rename(folder / LOCK)
    return held


def _kept_from_ageing(folder: Path) -> int:
    """Return the descriptor of a lock for systemd-tmpfiles, which deletes what is old in /tmp unless its folder is locked."""
    held = os.open(folder, os.O_RDONLY)
    with suppress(OSError):
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return held


def _end(folder: Path, held: Iterable[int], owner: int) -> None:
    # A fork inherits this call, and its end must not take the folder from the process that made it.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
        for descriptor in held:
            os.close(descriptor)


def _delete_left(base: Path, prefix: str) -> None:
    for folder in base.glob(f"{prefix}*"):
        # Other users' folders, and those without the file (of a version without locks, or just being made), stay.
        with suppress(OSError):
            held = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while the folder's process lives
                # A network file system may be mounted without locks between its hosts: another host's lock proves nothing.
                # One byte more than the name, so that no longer name matches.
                if os.read(held, len(_HOST) + 1) == _HOST:
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)
