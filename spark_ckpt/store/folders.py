"""Folders of a location as wholes: which there are, one removed, one moved; and which bucket a location is in."""

from __future__ import annotations

import contextlib
import shutil
from urllib.parse import urlsplit

from spark_ckpt.errors import StoreIoFailed
from spark_ckpt.store.location import Location
from spark_ckpt.store.names import valid_path


def bucket_of(location: Location) -> str:
    """Scheme and host of an object-store URL; empty for a local folder."""
    return "" if location.local is not None else "://".join(urlsplit(location.uri)[:2])


def folders(location: Location, prefix: str = "") -> list[str]:
    """Names of the folders directly below `prefix`."""
    return [name for name, is_folder in location.children(prefix) if is_folder]


def delete_folder(location: Location, path: str) -> None:
    """Remove the folder `path` with everything in it."""
    location.delete([info.path for info in location.list(path)])
    if location.local is not None:
        shutil.rmtree(location.local / valid_path(path), ignore_errors=True)


def move_folder(location: Location, path: str, to: str) -> None:
    """Give the files of the folder `path` another folder. Stopped halfway, the rest stays and can be moved again."""
    for info in location.list(path):
        with contextlib.suppress(StoreIoFailed, FileNotFoundError):  # what cannot be read is only in the way
            content = location.read_bytes(info.path)
            location.write_bytes(f"{to}/{info.path.removeprefix(f'{path}/')}", content)
        location.delete([info.path])
