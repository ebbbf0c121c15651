"""Typed errors for refusals of a file system or object store: a full disk becomes `StoreFull`.

The error number of the operating system is searched in the exception, in its causes, and in their texts. delta-rs,
Arrow and Java pass on only a text. A failure in a Python worker reaches the driver as a text, too.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from spark_ckpt.errors import (
    CkptError,
    StoreDenied,
    StoreFull,
    StoreIoFailed,
    StoreOutage,
    StoreReadOnly,
    StoreUnreachable,
)

_DECORATION = re.compile(r"\x1b\[\d*m|\u21b3")
_NUMBER = re.compile(r"\((?:os error|errno) (\d+)\)|\[errno (\d+)\]", re.IGNORECASE)
_LINKS_MOST = 8


class Refusal(NamedTuple):
    """One kind of refusal: its error class, its meaning, and advice."""

    kind: type[StoreOutage]
    meaning: str
    hint: str


_FULL = Refusal(StoreFull, "no space left", "free space on this file system; a running job then continues by itself")
_QUOTA = Refusal(
    StoreFull, "the disk quota is used up", "raise the quota or free space; a running job then continues by itself"
)
_READ_ONLY = Refusal(
    StoreReadOnly,
    "the file system is read-only",
    "mount it writable again (the kernel's log says why it changed), or give a location that can be written",
)
_DENIED = Refusal(
    StoreDenied, "permission denied", "give the user that runs the job the right to read and write this location"
)
_IO = Refusal(
    StoreIoFailed,
    "the device failed",
    "look into the kernel's log for errors of the device or mount; `spark-ckpt verify` says what is still whole",
)
_AWAY = Refusal(
    StoreUnreachable, "the mount does not answer", "check that the file system is mounted and its server runs"
)
_LIMIT = Refusal(StoreUnreachable, "too many open files", "raise the limit on open files (ulimit -n) for the job")
_GENERAL = Refusal(
    StoreUnreachable,
    "",
    "check that the location exists, is writable and its credentials are right, then start again",
)
_REFUSALS: Mapping[int, Refusal] = {
    errno.ENOSPC: _FULL,
    errno.EFBIG: _FULL,
    errno.EDQUOT: _QUOTA,
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EIO: _IO,
    errno.ENXIO: _IO,
    errno.ENODEV: _IO,
    errno.ESTALE: _AWAY,
    errno.ENOTCONN: _AWAY,
    errno.EHOSTDOWN: _AWAY,
    errno.EMFILE: _LIMIT,
    errno.ENFILE: _LIMIT,
}
_SPOKEN = {os.strerror(number): number for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)}
"""Texts that Java passes on without a number.

"Permission denied" is not among them, because any program of the user may print it, too.
"""


def outage(location: str, error: BaseException, **context: object) -> StoreOutage:
    """Return the `StoreOutage` for an I/O error at `location`: one line, without the library's backtrace."""
    refusal = refusal_in(error) or _GENERAL
    said = f"{type(error).__name__}: {one_line(error)}"
    what = f"{refusal.meaning}: {said}" if refusal.meaning else said
    return refusal.kind(what, location=location, hint=refusal.hint, **context)


def refusal_in(error: BaseException) -> Refusal | None:
    """Return the refusal that an exception or one of its causes reports; None if there is none."""
    link: BaseException | None = error
    # Bounded: chains of causes may be cyclic.
    for _ in range(_LINKS_MOST):
        if link is None:
            return None
        number = link.errno if isinstance(link, OSError) else None
        found = _REFUSALS.get(number) if number is not None else refusal_said(str(link))
        if found is not None:
            return found
        link = link.__cause__ or link.__context__
    return None


def refusal_said(text: str) -> Refusal | None:
    """Return the refusal that a library's text reports; None if there is none."""
    for match in _NUMBER.finditer(text):
        if found := _REFUSALS.get(int(match[1] or match[2])):
            return found
    return next((_REFUSALS[number] for spoken, number in _SPOKEN.items() if spoken in text), None)


@contextmanager
def typed_errors_at(location: str) -> Iterator[None]:
    """Raise errors of the operating system at `location` as a `StoreOutage`.

    Typed errors and a missing file pass unchanged.
    """
    try:
        yield
    except (CkptError, FileNotFoundError):
        raise
    except OSError as error:
        raise outage(location, error) from error


def taken_away(folder: Path | None) -> bool:
    """Return True if a local folder and its parent are both gone, as after an unmount."""
    return folder is not None and not folder.exists() and not folder.parent.exists()


def one_line(error: BaseException | str) -> str:
    """Return an error's text without the colours, arrows and stack of the libraries."""
    # "0:" is the first frame of a backtrace of Rust.
    text = _DECORATION.sub(" ", str(error).split("\n   0: ", 1)[0])
    return " ".join(text.split())[:300]
