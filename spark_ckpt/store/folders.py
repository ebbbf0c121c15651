"""Whole folders of a location: list, delete and move them, and find the bucket of a location."""

from __future__ import annotations

import contextlib
import shutil
from urllib.parse import urlsplit

from spark_ckpt.epochs.names import valid_path
from spark_ckpt.errors import StoreIoFailed
from spark_ckpt.store.location import Location


def bucket_of(location: Location) -> str:
    """Return scheme and host of an object-store URL; empty for a local folder."""
    return "" if location.local is not None else "://".join(urlsplit(location.uri)[:2])


def folders(location: Location, prefix: str = "") -> list[str]:
    """Return the names of the folders directly below `prefix`."""
    return [name for name, is_folder in location.children(prefix) if is_folder]


def delete_folder(location: Location, path: str) -> None:
    """Delete the folder `path` with everything in it. On a file system, what cannot be deleted stays."""
    if location.local is not None:
        shutil.rmtree(location.local / valid_path(path), ignore_errors=True)
    else:
        location.delete([info.path for info in location.list(path)])


def move_folder(location: Location, path: str, to: str) -> None:
    """Move the files of the folder `path` to the folder `to`. After an interruption the rest can be moved again."""
    for info in location.list(path):
        with contextlib.suppress(
            StoreIoFailed, FileNotFoundError
        ):  # an unreadable file is deleted, it only blocks the way
            content = location.read_bytes(info.path)
            location.write_bytes(f"{to}/{info.path.removeprefix(f'{path}/')}", content)
        location.delete([info.path])
