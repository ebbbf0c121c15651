"""Read-only access to folders of other programs. Errors name the path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spark_ckpt.errors import CheckpointDamaged, CheckpointUnreadable, ConfigInvalid, FormatUnknown
from spark_ckpt.spark_internals.query_logs import UnknownFormat, Unreadable

TEXT_BYTES_MAX = 256_000_000
"""Upper bound of a log file in bytes: single files have some kilobytes, compacted ones some megabytes."""

# The same for `rewind`, which reads several queries, and for `adopt`, which has none to leave out.
HINT_DAMAGED = (
    "restore the file from a backup; without one, leave this query out of the plan, or start the job in an empty store in place "
    "of an adoption; nothing was changed"
)
HINT_NEWER = "use a version of spark-ckpt that knows this format; Spark 3.5 to 4.2 can be read"


def local_folder(written: str) -> Path:
    """Return the local folder that a path or `file:` URI names. Raises `ConfigInvalid` for other URIs."""
    parts = urlsplit(written)
    if parts.scheme == "file":
        return Path(os.path.normpath(unquote(parts.path)))
    if "://" in written:
        hint = "copy it to a local folder and keep the files' times, or mount it"
        raise ConfigInvalid(
            f"{parts.scheme}:// cannot be read: checkpoints and tables are read from local or mounted folders",
            hint=hint,
        )
    if not written:
        raise ConfigInvalid("a folder has no name", hint="name the checkpoint folder of each query")
    # Symbolic links stay: a plan and its errors name a folder as the user does.
    return Path(os.path.normpath(Path(written).absolute()))


def file_of(uri: str) -> Path | None:
    """Return the local file that a URI in a log names, None for a file elsewhere."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in uri else Path(uri)


@contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """Raise errors of the file system as `CheckpointUnreadable`. A missing file stays a FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        what = f"{path}: {error.strerror or type(error).__name__}"
        denied = isinstance(error, PermissionError)
        step = (
            "give the user that runs this the right to read it" if denied else "check the path, and the disk below it"
        )
        raise CheckpointUnreadable(what, hint=f"{step}; nothing was changed") from error


def text_of(path: Path) -> str:
    """Return a file's text. Raises FileNotFoundError, `CheckpointUnreadable`, `CheckpointDamaged`."""
    with typed_errors(path), open(path, "rb", buffering=0) as file:  # noqa: PTH123 - many thousand small files: half the time of Path.open
        if os.fstat(file.fileno()).st_size > TEXT_BYTES_MAX:
            raise CheckpointDamaged(
                f"{path} has more than {TEXT_BYTES_MAX:,} bytes", hint="it is not a file of a query's log"
            )
        content = file.read()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CheckpointDamaged(f"{path} is not text", hint="restore it from a backup") from error


def listed_text(path: Path) -> str:
    """Return the text of a file that a listing of its folder had. Raises `CheckpointDamaged` if it is gone since."""
    try:
        return text_of(path)
    except FileNotFoundError:
        hint = "its query is running and deletes old files: stop it first, or try again"
        raise CheckpointDamaged(f"{path} went away while it was read", hint=hint) from None


@contextmanager
def parsing(what: object) -> Iterator[None]:
    """Raise errors about the text of a file of Spark's as `FormatUnknown` or `CheckpointDamaged`. `what`: names it."""
    try:
        yield
    except UnknownFormat as error:
        raise FormatUnknown(f"{what}: {error}", hint=HINT_NEWER) from error
    except Unreadable as error:
        raise CheckpointDamaged(f"{what}: {error}", hint=HINT_DAMAGED) from error


def changed_ms(path: Path) -> int:
    """Return a file's time of modification in milliseconds since 1970.

    Raises FileNotFoundError, `CheckpointUnreadable`.
    """
    with typed_errors(path):
        return path.stat().st_mtime_ns // 1_000_000


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return a folder's entries, sorted by name; none for a missing folder. Raises `CheckpointUnreadable`."""
    try:
        with typed_errors(folder), os.scandir(folder) as found:
            return sorted(found, key=lambda each: each.name)
    except FileNotFoundError:
        return []


def names(folder: Path) -> list[str]:
    """Return the names of the files in a folder."""
    return [each.name for each in entries(folder) if not each.is_dir()]


def all_names(folder: Path) -> list[str]:
    """Return the names of all entries of a folder, unsorted; none for a missing folder.

    Raises `CheckpointUnreadable`.
    """
    try:
        with typed_errors(folder):
            return os.listdir(folder)  # noqa: PTH208 - names are all that is wanted of hundred thousands
    except FileNotFoundError:
        return []


def numbered_folders(folder: Path) -> dict[int, Path]:
    """Return the folders inside a folder whose names are numbers, by number."""
    return {int(each.name): folder / each.name for each in entries(folder) if each.name.isdecimal() and each.is_dir()}
